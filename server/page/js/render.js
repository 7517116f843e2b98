/* Messages as nodes. An answer is drawn again on each delta: what is there already stays, what the reader
 * folded or selected with it. */
import {el, icon} from './dom.js';
import {setting} from './store.js';
import {Markdown} from './markdown.js';
import {codeBlock, copyText} from './code.js';
import {createBoxes, mayHaveBoxes, isDocTags, readDocTags} from './boxes.js';
import {createLogprobs} from './logprobs.js';
import {zoom, showText} from './attachments.js';

const views = new WeakMap(); /* by node */

/* Something folded; `draw` fills it when it is opened, and while it is open. */
function fold(symbol, kind) {
  const title = el('span'), note = el('span', {class: 'note'}), body = el('div', {class: 'inside'});
  const node = el('details', {class: `fold ${kind}`, hidden: true},
    el('summary', null, icon(symbol), title, note, icon('chevron')), body);
  const it = {node, body, update(name, hint, draw) {
    node.hidden = false;
    title.textContent = name;
    note.textContent = hint || '';
    it.draw = draw;
    if (node.open) draw(body);
  }};
  node.addEventListener('toggle', () => node.open && it.draw?.(body));
  return it;
}

/* Draws into `body` what `make` returns, if it is not there already. */
const once = (text, make) => body => {
  if (body.drawn !== text) body.replaceChildren(make(text));
  body.drawn = text;
};

function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; /* still growing, or not JSON */
  }
}

class Answer {
  constructor(node) {
    const thoughts = el('div', {class: 'markdown'}), text = el('div', {class: 'markdown'});
    this.node = node;
    this.reasoning = fold('brain', 'reasoning');
    this.reasoning.body.append(thoughts);
    this.thoughts = new Markdown(thoughts);
    this.text = new Markdown(text);
    this.raw = fold('info', 'raw');
    this.calls = el('div', {class: 'calls'});
    this.folds = [];
    this.views = el('div', {class: 'views', role: 'group', 'aria-label': 'Show the response as', hidden: true},
      ...[['text', 'Text'], ['tokens', 'Token probabilities']].map(([view, name]) =>
        el('button', {type: 'button', 'data-view': view, click: () => this.show(view)}, name)));
    node.replaceChildren(this.reasoning.node, this.views, text, this.raw.node, this.calls);
    node.addEventListener('click', e => {
      const button = e.target.closest('button.copy');
      if (button) copyText(button.closest('figure').querySelector('code').textContent, button);
    });
  }

  draw({content, reasoning, tool_calls: calls, logprobs, model}, {streaming, images}) {
    const text = content || '';
    this.node.classList.toggle('streaming', Boolean(streaming));
    this.node.classList.toggle('empty', !text && !reasoning && !calls?.length);
    if (reasoning)
      this.reasoning.update(streaming && !text && !calls?.length ? 'Reasoning …' : 'Reasoning', '',
        () => this.thoughts.update(reasoning, !streaming || text.length > 0));
    this.draw_text(text, model, images?.at(-1), !streaming);
    (calls || []).forEach((call, i) => {
      const {name, arguments: values} = call.function;
      if (!this.folds[i]) this.calls.append((this.folds[i] = fold('tools', 'call')).node);
      this.folds[i].update(`Tool call: ${name || '…'}`, values,
        once(indented(values || ''), t => codeBlock(t, 'json')));
    });
    if (!logprobs?.length) return;
    if (!this.logprobs) {
      this.logprobs = createLogprobs();
      this.text.node.after(this.logprobs.node);
      this.views.hidden = false;
      this.show(setting('answer-view') || 'tokens');
    }
    this.logprobs.update(logprobs);
  }

  /* Where an answer is nothing but boxes or DocTags, what can be read of it is shown; the rest is folded. */
  draw_text(text, model, image, done) {
    const tags = isDocTags(text);
    if (image && !this.boxes && mayHaveBoxes(text)) {
      this.boxes = createBoxes(zoom);
      this.text.node.before(this.boxes.node);
    }
    this.boxes?.update(text, model, image);
    const raw = tags || (image && /<loc\d{4}>|^\s*(?:```json\s*)?[[{][^]*"(?:bbox|box|point)_2d"/.test(text));
    if (raw) this.raw.update('As the model wrote it', '', once(text, t => el('pre', {tabindex: 0}, t)));
    else this.raw.node.hidden = true;
    this.text.update(tags ? readDocTags(text) : raw ? '' : text, done);
  }

  show(view) {
    setting('answer-view', view);
    const tokens = view === 'tokens';
    this.logprobs.node.hidden = !tokens;
    this.text.node.hidden = tokens;
    for (const button of this.views.children) button.setAttribute('aria-pressed', button.dataset.view === view);
  }
}

/* Drawing takes a quarter of the time at most while an answer comes: a long one is drawn less often. */
export function renderAnswer(node, message, options = {}) {
  let view = views.get(node);
  if (!view) views.set(node, view = {answer: new Answer(node), cost: 0, ended: 0});
  view.next = () => {
    const begun = performance.now();
    clearTimeout(view.timer);
    view.timer = 0;
    view.answer.draw(message, options);
    view.ended = performance.now();
    view.cost = view.ended - begun;
  };
  const wait = view.ended + 3 * view.cost - performance.now();
  if (!options.streaming || wait <= 0) view.next();
  else view.timer ||= setTimeout(() => view.next(), wait);
}

/* What a person or a tool gave. */
export function renderUser(node, message) {
  const files = message.attachments || [], state = [message.content, ...files.map(a => a.id)].join('\0');
  if (views.get(node) === state) return;
  views.set(node, state);
  if (message.role === 'tool') {
    const result = fold('tools', 'result');
    result.update('Tool result', message.content,
      once(indented(message.content), t => codeBlock(t, t === message.content ? '' : 'json')));
    return node.replaceChildren(result.node);
  }
  const images = files.filter(a => a.kind === 'image');
  node.replaceChildren(
    el('ul', {class: 'attachments', hidden: !files.length}, ...files.map(a => el('li', null, a.kind === 'image'
      ? el('button', {type: 'button', class: 'thumb', 'aria-label': `Enlarge ${a.name}`,
        click: () => zoom(a.data, images)}, el('img', {src: a.data, alt: a.name}))
      : el('button', {type: 'button', class: 'chip', 'aria-label': `Show ${a.name}`, click: () => showText(a)},
        icon('file'), el('span', null, a.name))))),
    el('div', {class: 'said', hidden: !message.content}, message.content));
}

/* A form for the results of calls, by hand. */
export function toolResultForm(calls, onResults) {
  const label = call => `Result of ${call.function.name}`;
  const fields = calls.map(call => el('textarea', {rows: 2, placeholder: 'Text or JSON', spellcheck: 'false',
    'aria-label': label(call), keydown: e => {
      if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) form.requestSubmit();
    }}));
  const form = el('form', {class: 'tool-result', submit: e => {
    e.preventDefault();
    onResults(fields.map(f => f.value));
  }}, calls.map((call, i) => el('label', null, label(call), fields[i])),
  el('button', {type: 'submit'}, calls.length > 1 ? 'Send results' : 'Send result'));
  return form;
}
