/* Markdown to nodes. marked parses, DOMPurify admits; of an answer that grows, only the last block is done
 * again. What a model wrote never becomes an attribute, but for links to http, https and mailto. */
import {el} from './dom.js';
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

let ready = null; /* true once both libraries are there, false where the build has none */
export const loaded = Promise.all([load('marked'), load('DOMPurify')]).then(([marked, purifier]) => {
  marked?.use({gfm: true, breaks: true, mangle: false, headerIds: false, renderer,
    extensions: mathExtensions(escape)});
  return ready = Boolean(marked && purifier);
});

/* A token to nodes, with what HTML cannot say: targets of links, code, tasks, math. */
function nodes(token) {
  const part = purify(globalThis.marked.parser([token]));
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
  drawMath(part);
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

  update(token, done) {
    this.raw = token.raw;
    if (token.type !== 'code') return patch(this.node, nodes(token));
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
    this.at = 0; /* where the last block begins */
    this.text = null;
  }

  update(text, done) {
    text = text.replace(/\r\n?/g, '\n')
      .replace(/^( *)(\t+)/gm, (_, blanks, tabs) => blanks + '    '.repeat(tabs.length)); /* as marked does */
    if (text === this.text && done === this.done) return;
    const grows = this.text != null && text.startsWith(this.text);
    this.text = text;
    this.done = done;
    if (!ready) {
      this.plain();
      if (ready == null) loaded.then(yes => yes && this.again());
      return;
    }
    if (this.node.classList.contains('plain')) this.clear();
    try {
      this.draw(grows && !done ? this.at : 0);
    } catch (error) { /* nested deeper than the parser's stack */
      if (!(error instanceof RangeError)) throw error;
      this.plain();
    }
  }

  /* From the block at `from` on. When all is there, all of it: a definition of a link may stand at the end. */
  draw(from) {
    const rest = this.text.slice(from), tokens = globalThis.marked.lexer(rest + closing(rest));
    const linked = Object.keys(tokens.links).length > 0;
    const shown = tokens.filter(t => t.type !== 'space' && t.type !== 'def');
    let at = from, i = from ? this.blocks.length - 1 : 0;
    for (const token of tokens) {
      if (token === shown.at(-1)) this.at = at;
      at += token.raw.length;
    }
    for (const token of shown) {
      const have = this.blocks[i];
      if (have?.type !== token.type) {
        const block = this.blocks[i] = new Block(token);
        have ? have.node.replaceWith(block.node) : this.node.append(block.node);
      }
      const block = this.blocks[i++], complete = this.done || token !== shown.at(-1);
      if (block.raw !== token.raw || linked || (complete && !block.complete)) block.update(token, complete);
      block.complete = complete;
    }
    for (const block of this.blocks.splice(i)) block.node.remove();
  }

  plain() {
    this.node.classList.add('plain');
    this.node.textContent = this.text;
  }

  clear() {
    this.node.classList.remove('plain');
    this.node.replaceChildren();
    this.blocks = [];
    this.at = 0;
  }

  again() {
    const {text, done} = this;
    this.text = null;
    this.update(text, done);
  }
}
