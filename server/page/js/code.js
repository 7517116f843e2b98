/* Blocks of code: language, highlighting, a button that copies. */
import {el, icon} from './dom.js';
import {load} from './lib.js';
import {purify} from './markdown.js';

const LONGEST = 100000; /* characters: above, code is not highlighted */
const NAMES = {'c++': 'cpp', 'objective-c': 'objectivec', vue: 'xml', svelte: 'xml', jsonc: 'json', zsh: 'bash',
  console: 'bash', tsx: 'typescript', jsx: 'javascript', toml: 'ini', cuda: 'cpp', cu: 'cpp'};

function known(language) {
  const name = language.toLowerCase();
  return globalThis.hljs?.getLanguage(NAMES[name] || name) && (NAMES[name] || name);
}

/* A block that can grow. While it does, each finished line is highlighted once, going on from the state that
 * the highlighter had at the end of the line before. */
export class CodeBlock {
  constructor(language) {
    this.language = language;
    this.code = el('code');
    this.node = el('figure', {class: 'code'},
      el('figcaption', null, el('span', {class: 'language'}, language || 'text'),
        el('button', {type: 'button', class: 'copy', title: 'Copy', 'aria-label': 'Copy code'}, icon('copy'))),
      el('pre', {tabindex: 0, role: 'group', 'aria-label': language ? `Code, ${language}` : 'Code'}, this.code));
    this.text = null;
    this.restart();
  }

  restart() {
    this.upto = 0;
    this.state = undefined;
    this.code.replaceChildren(this.tail = new Text());
  }

  update(text, done) {
    if (text === this.text && (!done || this.done)) return;
    if (this.text && !text.startsWith(this.text)) this.restart();
    this.text = text;
    this.done = done;
    const language = text.length <= LONGEST && known(this.language);
    if (language && done)
      return this.code.replaceChildren(purify(globalThis.hljs.highlight(language, text, true).value));
    const end = text.lastIndexOf('\n') + 1;
    if (language && end > this.upto) {
      const {value, top} = globalThis.hljs.highlight(language, text.slice(this.upto, end), true, this.state);
      this.tail.before(purify(value));
      this.state = top;
      this.upto = end;
    }
    this.tail.data = text.slice(this.upto);
    if (this.language && !globalThis.hljs && !this.waits) this.waits = load('hljs').then(hljs => hljs && this.again());
  }

  again() {
    const text = this.text;
    this.text = null;
    this.restart();
    this.update(text, this.done);
  }
}

/* A complete block. */
export function codeBlock(text, language = '') {
  const block = new CodeBlock(language);
  block.update(text, true);
  return block.node;
}

/* Copies; `button` shows for a moment that it did. A page without TLS has no clipboard of its own. */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = el('textarea', {class: 'off-screen'});
    field.value = text;
    (button?.parentNode || document.body).append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
    button?.focus();
  }
  if (!button) return;
  const was = [...button.childNodes];
  button.replaceChildren(icon('check'));
  button.classList.add('copied');
  setTimeout(() => {
    button.replaceChildren(...was);
    button.classList.remove('copied');
  }, 1500);
}
