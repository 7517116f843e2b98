/* Math in Markdown: $..$, $$..$$, \(..\) and \[..\], drawn by KaTeX into elements. */
import {load} from './lib.js';
import {tried} from './worker-client.js';

const INLINE = new RegExp(String.raw`^(?:\$\$(?!\$)([^]+?)\$\$|\\\[([^]+?)\\\]|\\\((.+?)\\\)` +
  String.raw`|\$(?![\s$])((?:\\.|[^\\$\n])*)(?<![\s\\])\$(?!\d))`);
const LINES = String.raw`((?:(?!\n[ \t]*\n)[^])*?)`; /* without an empty one */
const BLOCK = new RegExp(String.raw`^ {0,3}(?:\$\$(?!\$)${LINES}(?:\$\$[ \t]*(?:\n|$)|$)` +
  String.raw`|\\\[${LINES}(?:\\\][ \t]*(?:\n|$)|$))`);
const OPERATOR = /[\\^_=+\-*/<>|{}()]/;
const LONGEST = 4000; /* characters of one formula: the search for its end stops there */

/* Of KaTeX. */
const KATEX = {throwOnError: true, trust: false, strict: 'ignore', maxSize: 20, maxExpand: 500};

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
      start: src => { const at = src.slice(0, 4 * LONGEST).search(/\n {0,3}(?:\$\$(?!\$)|\\\[)/); return at < 0 ? undefined : at + 1; }}];
}

const drawn = new Map(); /* by source: a formula in a block that grows is typeset once */

/* A formula that KaTeX does not know, or that takes too long in the worker or becomes too large, stays source. */
async function typeset(display, tex) {
  const into = document.createElement('span'), options = {...KATEX, displayMode: display};
  if (!await tried('math', {tex, options}, 1000) || !await load('katex')) return null;
  globalThis.katex.render(tex.trim(), into, options);
  return into;
}

/* The formulas of a text have so many elements at most. */
const MOST = 12000;
const size = node => node?.querySelectorAll('*').length ?? 0;

function put(node, formula, room) {
  const most = formula && size(formula);
  if (!formula || room() < most) return node.classList.add('source');
  node.replaceChildren(...formula.cloneNode(true).childNodes);
  if (most > 500) node.offsetHeight; /* laid out before the next one comes */
}

/* Draws the formulas below `root`, what `block` will contain: at once those that have been drawn before. */
export function drawMath(root, block) {
  const room = () => MOST - size(block?.closest('.markdown')) - size(root);
  for (const node of root.querySelectorAll('.math:not(.source)')) {
    const tex = node.textContent, display = node.classList.contains('display'), name = display + tex;
    const have = drawn.get(name);
    if (have === undefined || have instanceof Promise) {
      if (!have && drawn.size > 500) drawn.clear();
      if (!have) drawn.set(name, typeset(display, tex).then(it => (drawn.set(name, it), it)));
      drawn.get(name).then(it => setTimeout(put, 0, node, it, room));
    } else put(node, have, room);
  }
}
