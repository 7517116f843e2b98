/* Math in Markdown: $..$, $$..$$, \(..\) and \[..\], drawn by KaTeX into elements. */
import {load} from './lib.js';

const INLINE = new RegExp(String.raw`^(?:\$\$(?!\$)([^]+?)\$\$|\\\[([^]+?)\\\]|\\\((.+?)\\\)` +
  String.raw`|\$(?![\s$])((?:\\.|[^\\$\n])*)(?<![\s\\])\$(?!\d))`);
const LINES = String.raw`((?:(?!\n[ \t]*\n)[^])*?)`; /* without an empty one */
const BLOCK = new RegExp(String.raw`^ {0,3}(?:\$\$(?!\$)${LINES}(?:\$\$[ \t]*(?:\n|$)|$)` +
  String.raw`|\\\[${LINES}(?:\\\][ \t]*(?:\n|$)|$))`);
const OPERATOR = /[\\^_=+\-*/<>|{}()]/;
const LONGEST = 4000; /* characters of one formula: the search for its end stops there */

const token = (raw, tex, display, open) => ({type: 'math', raw, tex, display, open});

/* Between dollars, words with blanks and without an operator are prices: "$5, or 10$ more". */
function inline(src) {
  const m = INLINE.exec(src.slice(0, LONGEST));
  if (!m || (m[4] && /\s/.test(m[4]) && !OPERATOR.test(m[4]))) return;
  return token(m[0], m[1] ?? m[2] ?? m[3] ?? m[4], m[1] != null || m[2] != null);
}

function block(src) {
  const m = BLOCK.exec(src.slice(0, LONGEST));
  return m && token(m[0], m[1] ?? m[2], true, !/(?:\$\$|\\\])\s*$/.test(m[0].slice(2)));
}

/* Extensions of marked: a formula becomes an element with its source. One whose end has not come yet keeps it. */
export function mathExtensions(escape) {
  const renderer = ({display, open, tex}) =>
    `<span class="math${display ? ' display' : ''}${open ? ' source' : ''}">${escape(tex)}</span>`;
  const start = src => { const at = src.search(/\$|\\[[(]/); return at < 0 ? undefined : at; };
  return [{name: 'math', level: 'inline', start, tokenizer: inline, renderer},
    {name: 'mathBlock', level: 'block', tokenizer: block,
      start: src => { const at = src.search(/\n {0,3}(?:\$\$(?!\$)|\\\[)/); return at < 0 ? undefined : at + 1; }}];
}

const drawn = new Map(); /* by source: a formula in a block that grows is typeset once */

function typeset(node) {
  const tex = node.textContent, display = node.classList.contains('display'), name = display + tex;
  if (!drawn.has(name)) {
    const into = document.createElement('span');
    try {
      globalThis.katex.render(tex.trim(), into, {displayMode: display, throwOnError: true, trust: false,
        strict: 'ignore', maxSize: 20, maxExpand: 500});
    } catch {
      return node.classList.add('source'); /* no TeX that it knows: the source stays */
    }
    if (drawn.size > 500) drawn.clear();
    drawn.set(name, into);
  }
  node.replaceChildren(...drawn.get(name).cloneNode(true).childNodes);
}

/* Draws the formulas below `root`: at once where KaTeX is loaded, else as soon as it is. */
export function drawMath(root) {
  const found = [...root.querySelectorAll('.math:not(.source)')];
  if (!found.length) return;
  if (globalThis.katex) found.forEach(typeset);
  else load('katex').then(katex => katex && found.forEach(typeset));
}
