/* KaTeX and highlight.js where they can be stopped: a short text can take them forever. */
const LIBRARY = {math: 'katex', code: 'highlight'}, FORMULA = 1500, SPANS = 10000;
const states = new Map(); /* of the highlighter, at the end of what it has seen of a block that grows */

const work = {
  /* Whether the formula can be drawn, and by how many elements at most. */
  math: ({tex, options}) => {
    const html = self.katex.renderToString(tex.trim(), options);
    return html.split('<').length < 2 * FORMULA;
  },
  /* HTML; null for an unknown language, or where it is too much. */
  code: ({language, text, block, from}) => {
    if (!self.hljs.getLanguage(language)) return null;
    const {value, top} = self.hljs.highlight(language, text, true, from ? states.get(block) : undefined);
    if (block != null) states.set(block, top);
    return value.split('<').length < 2 * SPANS ? value : null;
  },
};

onmessage = ({data: {kind, job}}) => {
  try {
    if (!self[{math: 'katex', code: 'hljs'}[kind]]) importScripts(new URL(`../lib/${LIBRARY[kind]}.js`, location.href));
    postMessage('begun'); /* the time counts from here */
    postMessage({out: work[kind](job)});
  } catch {
    postMessage({out: null});
  }
};
