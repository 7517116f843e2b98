/* Blocks of code: language, highlighting, a button that copies. */
import {el, icon, textNodes} from './dom.js';
import {tried} from './worker-client.js';
import {purify} from './markdown.js';

const LONGEST = 100000; /* characters: above, code is not highlighted */
const NAMES = {'c++': 'cpp', 'objective-c': 'objectivec', vue: 'xml', svelte: 'xml', jsonc: 'json', zsh: 'bash',
  console: 'bash', tsx: 'typescript', jsx: 'javascript', toml: 'ini', cuda: 'cpp', cu: 'cpp'};

const done = new Map(); /* HTML of complete blocks, by language and text */
let blocks = 0;

/* A block that can grow; a worker highlights it. While it grows, each finished line is highlighted once, going
 * on from the state that the highlighter had at the end of the line before. What takes too long stays plain. */
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
    this.number = blocks++;
    this.failed = false;
    this.part = null;
    this.code.replaceChildren(this.tail = new Text());
  }

  update(text, complete) {
    if (text === this.text && (!complete || this.complete)) return;
    if (this.text == null || !text.startsWith(this.text) || this.tail.parentNode !== this.code) this.restart();
    this.text = text;
    this.complete = complete;
    const html = complete && done.get(this.name());
    if (html) return this.code.replaceChildren(purify(html));
    if (text.length > LONGEST) return this.code.replaceChildren(...textNodes(text));
    this.tail.data = text.slice(this.upto);
    if (this.language && !this.working && !this.failed) this.work();
  }

  name() { return `${this.language}\n${this.text}`; }

  async work() {
    const name = this.language.toLowerCase(), language = NAMES[name] || name, wanted = () => this.node.isConnected;
    this.working = true;
    while (!this.failed) {
      const {text, number, upto, complete} = this, end = text.lastIndexOf('\n') + 1;
      if (complete ? done.has(this.name()) : end <= upto) break;
      const html = await tried('code', complete ? {language, text}
        : {language, text: text.slice(upto, end), block: number, from: upto}, 3000, wanted);
      if (number !== this.number) continue;
      if (html == null) this.failed = true;
      else if (complete) {
        if (done.size > 200) done.clear();
        done.set(`${this.language}\n${text}`, html);
        if (text === this.text) this.code.replaceChildren(purify(html));
      } else if (!this.complete) {
        const begun = performance.now();
        if (!this.part || this.part.textContent.length > 4000) /* lines that are done are not laid out again */
          this.tail.before(this.part = el('div', {class: 'cut'}));
        this.part.append(purify(html));
        this.upto = end;
        this.tail.data = this.text.slice(end);
        this.node.offsetHeight;
        await new Promise(go => setTimeout(go, 3 * (performance.now() - begun)));
      }
    }
    this.working = false;
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
