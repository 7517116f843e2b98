/* Markdown to nodes. marked parses, DOMPurify admits; of an answer that grows, only the last block is done
 * again. What a model wrote never becomes an attribute, but for links to http, https and mailto. No text holds
 * up the page: a part that takes too long or grows too large stays plain text, and a long one comes by and by. */
import {el, textNodes} from './dom.js';
import {load} from './lib.js';
import {mathExtensions, drawMath} from './math.js';
import {CodeBlock, codeBlock} from './code.js';

const TAGS = ('a b blockquote br caption code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i kbd li mark ol p ' +
  'pre s small span strong sub summary sup table tbody td tfoot th thead tr u ul').split(' ');
const RULES = {ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ['href', 'title', 'class', 'align', 'start', 'colspan', 'rowspan'],
  ADD_URI_SAFE_ATTR: ['align', 'start', 'colspan', 'rowspan'],
  ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  RETURN_DOM_FRAGMENT: true};

export const purify = html => globalThis.DOMPurify.sanitize(html, RULES);

const ENTITY = {'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;'};
const escape = text => text.replace(/[&<>"']/g, c => ENTITY[c]);

/* HTML that a model wrote: known elements without attributes but for spans of cells. Anything else is shown. */
const TAG = /<(\/?)([a-z][a-z0-9]*)((?:\s+[\w-]+=(?:"[^"<>]*"|'[^'<>]*'|[\w%#.-]+))*)\s*(\/?)>/gi;
function html(raw) {
  const text = raw.replace(TAG, '');
  if (text.includes('<') || [...raw.matchAll(TAG)].some(m => m[2] === 'a' || !TAGS.includes(m[2].toLowerCase())))
    return escape(raw);
  return raw.replace(TAG, (all, close, tag, attributes) =>
    `<${close}${tag}${(attributes.match(/\s(?:col|row)span=["']?\d{1,3}["']?/gi) || []).join('')}>`);
}

function link(href, title, text) {
  if (!/^(?:https?:|mailto:)/i.test(href)) return text;
  return `<a href="${escape(href)}"${title ? ` title="${escape(title)}"` : ''}>${text}</a>`;
}

const renderer = {
  html, link,
  image: (href, title, text) => link(href, title, escape(text || href)),
  heading: (text, level) => `<h${Math.min(6, level + 2)}>${text}</h${Math.min(6, level + 2)}>`,
  checkbox: checked => `<span class="${checked ? 'task done' : 'task'}"></span>`,
  listitem: (text, task) => `<li${task ? ' class="has-task"' : ''}>${text}</li>`,
  table: (head, body) => `<div class="table"><table><thead>${head}</thead><tbody>${body}</tbody></table></div>`,
  code: (text, info) => `<pre><code class="${escape((info || '').match(/[^\s{,]*/)[0])}">${escape(text)}</code></pre>`,
};

/* Debian 12's DOMPurify 2.4.1 reads the depth of an undeclared `shadowNode` once, before it walks the nodes and
 * checks the depth of each. Without this every call throws. */
globalThis.shadowNode ??= {__depth: 0};

/* Limits: characters of a text, its blocks, characters of one paragraph; "<" in the HTML of a block, of a text; cells of a table. */
const LONGEST = 200000, BLOCKS = 2000, INLINE = 20000, BLOCK_TAGS = 20000, TAGS_IN_ALL = 100000, CELLS = 6000;
/* marked: time to find the blocks, for all paragraphs, for one; characters that are looked at in steps before
 * one counts as slow, so that a busy machine doesn't make it so. */
const BLOCKS_MS = 800, INLINES_MS = 800, INLINE_MS = 60, LOOKS = 1e6;

class Slow extends Error {}
/* Too slow, or nested deeper than the stack. */
const tooMuch = error => { if (!(error instanceof Slow || error instanceof RangeError)) throw error; };
const slow = []; /* texts that took too long: neither they nor what begins with them is tried again */
const isSlow = text => slow.some(s => text.startsWith(s));
const remember = text => { if (text && slow.unshift(text) > 50) slow.pop(); };

/* Looks at the clock at each step of the parser. */
const clock = level => ({name: `clock-${level}`, level, tokenizer(src) {
  this.lexer.looks += src.length;
  if (this.lexer.looks > LOOKS && performance.now() > this.lexer.ends) throw new Slow();
}});
/* What is not parsed; a table is not, whose rows marked would fill up to more cells than can be shown. */
const plainPart = {name: 'plain', level: 'block', renderer: ({raw}) => escape(raw), tokenizer(src) {
  const [, head] = /^ {0,3}(\S.*\|.*|\|.*)\n {0,3}[|:-][-:| ]*(?:\n|$)/.exec(src) || [];
  if (!head) return;
  const end = src.search(/\n[ \t]*\n/), raw = end < 0 ? src : src.slice(0, end + 1);
  if (head.split('|').length * raw.split('\n').length > CELLS) return {type: 'plain', raw};
}};

const bounded = Lexer => class extends Lexer {
  ends = performance.now() + BLOCKS_MS;
  left = INLINES_MS;
  looks = 0;

  lex(src) {
    try {
      if (src.length > LONGEST || isSlow(src)) throw new Slow();
      this.blockTokens(src, this.tokens);
    } catch (error) {
      tooMuch(error);
      const rest = src.slice(this.tokens.reduce((sum, t) => sum + t.raw.length, 0));
      if (performance.now() > this.ends) remember(rest);
      this.tokens.push({type: 'plain', raw: rest});
    }
    for (const {src: text, tokens} of this.inlineQueue) this.inlineTokens(text, tokens);
    return this.tokens;
  }

  inlineTokens(src, tokens = []) {
    if (this.inside) return super.inlineTokens(src, tokens);
    const begun = performance.now();
    this.ends = begun + Math.min(this.left, INLINE_MS);
    this.inside = true;
    this.looks = 0;
    try {
      if (src.length > INLINE || isSlow(src)) throw new Slow();
      super.inlineTokens(src, tokens);
    } catch (error) {
      tooMuch(error);
      if (performance.now() - begun > INLINE_MS) remember(src);
      tokens.splice(0, Infinity, ...src.split('\n').flatMap((line, i) =>
        [...(i ? [{type: 'br', raw: '\n'}] : []), {type: 'text', raw: line, text: escape(line)}]));
    }
    this.inside = false;
    this.left -= performance.now() - begun;
    return tokens;
  }
};

/* What HTML costs to show: its tags, and with each how deep it is and the elements like <b> that are open, which
 * the browser opens again in every block. */
function costOf(text) {
  let cost = 0, all = 0, depth = 0;
  const open = {};
  for (const [, close, name] of text.matchAll(/<(\/?)(\w*)/g)) {
    cost += 1 + all + (depth >> 5);
    if (!/^[bh]r$/.test(name)) depth = Math.max(0, Math.min(512, depth + (close ? -1 : 1)));
    if (!/^(?:a|b|code|em|i|s|small|strong|u)$/.test(name)) continue;
    const now = Math.max(0, Math.min(3, (open[name] || 0) + (close ? -1 : 1)));
    all += now - (open[name] || 0);
    open[name] = now;
  }
  return cost;
}

/* Tasks that draw take turns of SLICE ms with all else. */
const SLICE = 40, waiting = new Set();
let sliceEnds = 0;
function busy() {
  if (!sliceEnds) {
    sliceEnds = performance.now() + SLICE;
    setTimeout(turn);
  }
  return performance.now() > sliceEnds;
}
function turn() {
  sliceEnds = 0;
  for (const one of waiting) {
    if (busy()) return;
    waiting.delete(one);
    one.go();
  }
}

let lexer; /* marked's, bounded */
let ready = null; /* true once both libraries are there, false where the build has none */
export const loaded = Promise.all([load('marked'), load('DOMPurify')]).then(([marked, purifier]) => {
  marked?.use({gfm: true, breaks: true, mangle: false, headerIds: false, renderer,
    extensions: [clock('block'), clock('inline'), plainPart, ...mathExtensions(escape)]});
  lexer = marked && bounded(marked.Lexer);
  return ready = Boolean(marked && purifier);
});

/* HTML to nodes, with what it cannot say: targets of links, code, tasks, math. */
function nodes(html, block) {
  const part = purify(html);
  for (const a of part.querySelectorAll('a')) {
    a.target = '_blank';
    a.rel = 'noopener noreferrer';
  }
  for (const pre of part.querySelectorAll('pre'))
    pre.replaceWith(codeBlock(pre.textContent, pre.firstElementChild?.className || ''));
  for (const task of part.querySelectorAll('.task')) {
    task.setAttribute('role', 'img');
    task.setAttribute('aria-label', task.classList.contains('done') ? 'Done:' : 'To do:');
  }
  for (const table of part.querySelectorAll('.table')) {
    table.tabIndex = 0;
    table.setAttribute('role', 'group');
    table.setAttribute('aria-label', 'Table');
  }
  drawMath(part, block);
  return part;
}

/* Makes the children of `now` those of `next`. What is equal stays as it is, with its selection and focus. */
function patch(now, next) {
  const want = [...next.childNodes];
  want.forEach((node, i) => {
    const have = now.childNodes[i];
    if (!have) now.append(node);
    else if (have.isEqualNode(node)) return;
    else if (have.nodeType === 3 && node.nodeType === 3) have.data = node.data;
    else if (have.nodeType === 1 && have.cloneNode().isEqualNode(node.cloneNode())) patch(have, node);
    else have.replaceWith(node);
  });
  while (now.childNodes.length > want.length) now.lastChild.remove();
}

/* One block at the top: a list, a table, a paragraph. Code that grows has its own way. */
class Block {
  constructor(token) {
    this.type = token.type;
    this.node = el('div', {class: 'block'});
  }

  /* `left`: what its HTML may cost. */
  update(token, done, left) {
    this.raw = token.raw;
    this.cost = 1;
    if (token.type !== 'code') {
      const html = token.type === 'plain' ? '' : globalThis.marked.parser([token]), cost = costOf(html);
      const fits = html && cost <= Math.min(left, BLOCK_TAGS);
      if (fits) this.cost = cost;
      return patch(this.node, fits ? nodes(html, this.node)
        : el('div', null, el('p', {class: 'plain'}, textNodes(token.raw))));
    }
    const language = (token.lang || '').match(/[^\s{,]*/)[0];
    if (this.code?.language !== language) {
      this.code = new CodeBlock(language);
      this.node.replaceChildren(this.code.node);
    }
    this.code.update(token.text, done);
  }
}

/* The end of a fence that is still open, since marked reads one without an end as a paragraph. */
function closing(text) {
  let open = null;
  for (const [, before, fence, rest] of text.matchAll(/^([ >]*(?:(?:[-*+]|\d{1,9}[.)]) +)*)(`{3,}|~{3,})(.*)$/gm)) {
    if (!open && !(fence[0] === '`' && rest.includes('`'))) open = {before: before.replace(/[^ >]/g, ' '), fence};
    else if (open && fence.startsWith(open.fence) && !rest.trim() && before.length <= open.before.length + 3)
      open = null;
  }
  return open ? `\n${open.before}${open.fence}` : '';
}

/* Markdown in `node`; update(text, done) again and again. */
export class Markdown {
  constructor(node) {
    this.node = node;
    this.blocks = [];
    this.at = this.first = 0; /* where the last block begins, and its number */
    this.text = null;
  }

  update(text, done) {
    text = text.replace(/\r\n?/g, '\n')
      .replace(/^( *)(\t+)/gm, (_, blanks, tabs) => blanks + '    '.repeat(tabs.length)); /* as marked does */
    if (text === this.text && done === this.done) return;
    if (!text.startsWith(this.text)) this.at = this.first = 0;
    this.text = text;
    this.done = done;
    this.tokens = null;
    if (!ready) {
      this.plain();
      if (ready == null) loaded.then(yes => yes && this.again());
      return;
    }
    this.node.setAttribute('aria-busy', 'true');
    clearTimeout(this.timer);
    const wait = done ? 0 : (this.rest || 0) - performance.now(); /* a quarter of the time at most while it grows */
    if (wait > 0) this.timer = setTimeout(() => this.go(), wait);
    else this.go();
  }

  /* Goes on drawing until the slice ends. */
  go() {
    if (busy()) return waiting.add(this);
    waiting.delete(this);
    const begun = performance.now();
    try {
      if (!this.tokens) this.parse();
      if (this.fill()) this.node.removeAttribute('aria-busy');
      else waiting.add(this);
    } catch (error) {
      tooMuch(error);
      this.plain();
    }
    this.node.offsetHeight; /* the layout counts as drawing */
    this.rest = 4 * performance.now() - 3 * begun;
  }

  /* From the last block on. When all is there, all of it: a definition of a link may stand at the end. */
  parse() {
    if (this.node.classList.contains('plain')) this.clear();
    const from = this.done ? 0 : this.at, rest = this.text.slice(from), tokens = new lexer().lex(rest + closing(rest));
    this.linked = Object.keys(tokens.links).length > 0;
    if (tokens.length > BLOCKS)
      tokens.push({type: 'plain', raw: tokens.splice(BLOCKS).map(t => t.raw).join('')});
    this.tokens = tokens.filter(t => t.type !== 'space' && t.type !== 'def');
    this.next = from ? this.first : 0;
    this.parsed = from;
    for (const token of tokens) {
      if (token === this.tokens.at(-1)) break;
      this.parsed += token.raw.length;
    }
  }

  fill() {
    const last = this.tokens.at(-1);
    let left = TAGS_IN_ALL - this.blocks.slice(0, this.next).reduce((sum, b) => sum + b.cost, 0);
    while (this.tokens.length) {
      if (busy()) return false;
      const token = this.tokens.shift(), have = this.blocks[this.next];
      if (have?.type !== token.type) {
        const block = this.blocks[this.next] = new Block(token);
        have ? have.node.replaceWith(block.node) : this.node.append(block.node);
      }
      const block = this.blocks[this.next++], complete = this.done || token !== last;
      if (block.raw !== token.raw || this.linked || (complete && !block.complete)) block.update(token, complete, left);
      block.complete = complete;
      left -= block.cost;
    }
    for (const block of this.blocks.splice(this.next)) block.node.remove();
    this.at = this.parsed;
    this.first = Math.max(0, this.next - 1);
    return true;
  }

  plain() {
    this.node.removeAttribute('aria-busy');
    this.node.classList.add('plain');
    this.node.replaceChildren(...textNodes(this.text));
  }

  clear() {
    this.node.classList.remove('plain');
    this.node.replaceChildren();
    this.blocks = [];
    this.at = this.first = 0;
  }

  again() {
    const {text, done} = this;
    this.text = null;
    this.update(text, done);
  }
}
