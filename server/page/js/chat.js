/* The conversation that is shown: sending, answers as they come, versions, branches. */
import * as api from './api.js';
import * as store from './store.js';
import {el, icon, iconButton, toast} from './dom.js';
import {renderAnswer, renderUser, toolResultForm} from './render.js';
import {createComposer} from './composer.js';
import {copyText} from './code.js';
import {contentParts} from './attachments.js';
import {statsButton, numbers, number} from './stats.js';
import {determinismButton} from './determinism.js';
import {createWelcome} from './welcome.js';

const failed = m => m?.role === 'assistant' && !m.content && !m.tool_calls?.length;
const imagesOf = list => list.flatMap(m => m.attachments || []).filter(a => a.kind === 'image').map(a => a.data);

/* What is sent: an answer that failed is left out, together with its question. */
function toMessages(list, system) {
  const out = system ? [{role: 'system', content: system}] : [];
  list.forEach((m, i) => {
    if (failed(m) || (m.role === 'user' && failed(list[i + 1]))) return;
    if (m.role === 'user') out.push({role: 'user', content: contentParts(m.content, m.attachments)});
    else if (m.role === 'tool') out.push({role: 'tool', tool_call_id: m.tool_call_id, content: m.content});
    else out.push({role: m.role, content: m.content || null, reasoning_content: m.reasoning || undefined,
      tool_calls: m.tool_calls});
  });
  return out;
}

/* `request`, the body that was sent, is not stored: it follows from the messages before the answer. */
export function withRequest(c, m) {
  if (m.role !== 'assistant' || !m.params || 'request' in m) return;
  Object.defineProperty(m, 'request', {get: () => ({...m.params,
    messages: toMessages(store.path(c, m.parent), m.system)})});
}

/* One event of a stream. */
function take(m, event, begun) {
  if (event.id) m.id_response = event.id;
  if (event.usage) m.usage = event.usage;
  if (event.timings) m.timings = event.timings;
  if (event.cache_info) m.cache_info = event.cache_info;
  for (const {index, delta = {}, logprobs, finish_reason: finish} of event.choices || []) {
    if (index !== 0) continue;
    const reasoning = delta.reasoning_content || delta.reasoning || '';
    m.content += delta.content || '';
    if (reasoning) m.reasoning = (m.reasoning || '') + reasoning;
    for (const part of delta.tool_calls || []) {
      const call = (m.tool_calls ||= [])[part.index] ||= {id: '', type: 'function', function: {name: '', arguments: ''}};
      call.id = part.id || call.id;
      call.function.name += part.function?.name || '';
      call.function.arguments += part.function?.arguments || '';
    }
    if (logprobs?.content) (m.logprobs ||= []).push(...logprobs.content);
    if (finish) m.finish_reason = finish;
    if (delta.content || reasoning || delta.tool_calls) m.ttft_ms ??= performance.now() - begun;
  }
}

/* `settings` gives what requests ask for (request()), `model()` the chosen model; onChange: the list of
 * conversations has changed. */
export function createChat(node, {settings, model, onChange}) {
  let c = store.newConversation(), views = [], stick = true;
  const running = new Map(); /* by conversation: {c, m, stop} */
  const live = el('div', {class: 'off-screen', 'aria-live': 'polite'});
  const title = el('h1', {class: 'off-screen'}), turns = el('div', {class: 'turns'});
  const welcome = createWelcome(send);
  const scroll = el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Conversation', scroll: () => {
    stick = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
    jump.hidden = stick;
  }}, welcome.node, title, turns);
  const jump = el('button', {type: 'button', class: 'jump', hidden: true, title: 'To the end', 'aria-label': 'To the end',
    click: () => toEnd(true)}, icon('chevron'));
  const box = el('div', {class: 'composer-box'});
  node.replaceChildren(scroll, el('div', {class: 'dock'}, jump, box), live);
  const composer = createComposer(box, {onSend: send, onStop: stop,
    onDraft: value => store.draft(c.head ? c.id : 'new', value.text || value.attachments.length ? value : null).catch(() => {})});
  new ResizeObserver(() => toEnd()).observe(turns);

  function toEnd(always) {
    if (always || stick) scroll.scrollTop = scroll.scrollHeight;
  }

  async function save(what = c) {
    what.updated = Date.now();
    await store.put(what).catch(error => toast(`This browser cannot keep the conversation: ${error.message}`));
    onChange();
  }

  /* ---- what is shown ---- */

  function render() {
    const list = store.path(c);
    const same = views.findIndex((v, i) => v.m !== list[i]);
    for (const v of views.splice(same < 0 ? list.length : same)) v.root.remove();
    for (const m of list.slice(views.length)) add(m);
    for (const v of views) draw(v);
    welcome.node.hidden = list.length > 0;
    title.hidden = !list.length;
    title.textContent = c.title;
    node.classList.toggle('empty', !list.length);
    composer.busy(running.has(c.id));
    document.title = c.title ? `${c.title} – Kvasir` : 'Kvasir';
  }

  function add(m) {
    const who = store.speaker(m), v = {m, body: el('div', {class: 'body'}), note: el('div'),
      foot: el('div', {class: 'foot'})};
    v.root = el('article', {class: `turn ${m.role}`, 'aria-label': `${who}, message ${views.length + 1}`, 'data-id': m.id},
      m.role === 'assistant' ? el('h2', null, el('span', {class: 'avatar'}, icon('kvasir')), el('span', null, who))
        : el('h2', {class: 'off-screen'}, who), v.body, v.note, v.foot);
    views.push(v);
    turns.append(v.root);
  }

  function draw(v) {
    const {m} = v, now = running.get(c.id)?.m === m;
    v.root.classList.toggle('running', now);
    if (m.role !== 'assistant') renderUser(v.body, m);
    else renderAnswer(v.body, m, {streaming: now, images: imagesOf(store.path(c, m.parent))});
    if (now) return v.foot.replaceChildren();
    v.note.replaceChildren(...note(m));
    v.foot.replaceChildren(...actions(v));
    if (m.tool_calls && m.finish_reason === 'tool_calls' && m.id === c.head) v.note.append(toolForm(m));
  }

  function note(m) {
    if (m.error) return [el('div', {class: 'problem', role: 'alert'}, el('span', null, m.error),
      el('button', {type: 'button', click: () => again(m)}, 'Try again'))];
    const text = {length: 'Stopped: max tokens reached', stopped: 'Stopped'}[m.finish_reason] ||
      (m.params && !store.complete(m) && 'Incomplete: interrupted, or still running in another tab') || (failed(m) && 'Empty response');
    return text ? [el('p', {class: 'hint'}, text)] : [];
  }

  const idle = act => () => running.has(c.id) || act();
  function actions({m, root}) {
    const all = store.siblings(c, m), at = all.indexOf(m);
    const turn = by => idle(() => {
      c.head = store.leaf(c, all[at + by].id);
      render();
      save();
    });
    const step = (by, label) => iconButton('chevron', label, turn(by), {class: `icon-button ${by < 0 ? 'back' : ''}`,
      disabled: !all[at + by]});
    const versions = all.length > 1 && el('span', {class: 'versions', role: 'group', 'aria-label': 'Versions'},
      step(-1, 'Previous version'), el('span', null, `${at + 1}/${all.length}`), step(1, 'Next version'));
    const worded = (word, button) => { /* below the icon where nothing can hover */
      if (button) button.dataset.word = word;
      return button;
    };
    const copy = worded('Copy', iconButton('copy', 'Copy', e => copyText(m.content, e.currentTarget)));
    return m.role === 'user' ? [versions, worded('Edit', iconButton('edit', 'Edit', idle(() => edit(m, root)))), copy].filter(Boolean)
      : m.role === 'tool' ? [versions].filter(Boolean)
        : [versions, m.content && copy, worded('Retry', iconButton('retry', 'Regenerate', idle(() => again(m)))),
          worded('Branch', iconButton('branch', 'Branch into a new chat', idle(() => branch(m)))),
          worded('Stats', m.usage && statsButton(m)),
          worded('Check', m.content && m.request && determinismButton(m, {api})), speed(m)].filter(Boolean);
  }

  /* Tokens per second, beside the actions. */
  function speed(m) {
    const {rate} = numbers(m);
    return Number.isFinite(rate) && el('span', {class: 'speed'}, `${number(rate)} tokens/s`);
  }

  function edit(m, root) {
    const field = el('textarea', {rows: 3, 'aria-label': 'Edited message'});
    const close = () => { form.remove(); root.classList.remove('editing'); };
    const form = el('form', {class: 'edit-form', keydown: e => {
      if (e.key === 'Escape') { e.preventDefault(); close(); }
      if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); form.requestSubmit(); }
    }, submit: e => {
      e.preventDefault();
      const content = field.value.trim();
      if (running.has(c.id) || (!content && !m.attachments?.length)) return;
      close();
      ask(m.parent, {...m, content});
    }}, field, el('div', {class: 'row'}, el('button', {type: 'button', click: close}, 'Cancel'),
      el('button', {class: 'primary'}, 'Send')));
    field.value = m.content;
    root.classList.add('editing');
    root.append(form);
    field.style.height = `${field.scrollHeight + 2}px`;
    field.focus();
  }

  const toolForm = m => toolResultForm(m.tool_calls, results => {
    if (running.has(c.id) || !settings.request()) return;
    let at = m.id;
    m.tool_calls.forEach(({id}, i) => { at = put({role: 'tool', content: results[i], tool_call_id: id}, at).id; });
    answer(at);
  });

  async function branch(m) {
    const list = store.path(c, m.id), copy = {...store.newConversation(), title: c.title, root: list[0].id, head: m.id,
      messages: structuredClone(Object.fromEntries(list.map(n => [n.id, n])))};
    await save(copy);
    toast('A new chat begins with the messages up to here.');
    location.hash = copy.id;
  }

  /* ---- sending ---- */

  /* A new message after `parent`, shown from now on. */
  function put(m, parent) {
    const it = {...m, id: store.newId(), parent, created: Date.now()};
    c.messages[it.id] = it;
    c.root ||= it.id;
    c.head = it.id;
    return it;
  }

  function send({text, attachments = []}) {
    if (running.has(c.id) || !ask(c.head, {content: text, attachments})) return;
    composer.clear();
    composer.focus();
  }

  /* A message of the user and the answer to it; false where a setting is wrong. */
  function ask(parent, {content, attachments}) {
    if (!settings.request()) return false;
    if (!c.head) {
      store.draft('new', null);
      c.title = content.trim().split('\n')[0].slice(0, 60) || attachments[0]?.name || 'Chat';
    } else store.draft(c.id, null);
    answer(put({role: 'user', content, attachments}, parent).id);
    return true;
  }

  function again(m) {
    if (!running.has(c.id) && settings.request()) answer(m.parent);
  }

  async function answer(parent) {
    const {system, ...params} = settings.request(), mine = c, begun = performance.now();
    const m = put({role: 'assistant', content: '', model: model(), system,
      params: {model: model() || undefined, stream: true, stream_options: {include_usage: true}, return_cache_info: true,
        timings_per_token: true, seed: crypto.getRandomValues(new Uint32Array(1))[0] >>> 1, ...params}}, parent);
    const stopper = new AbortController();
    let spoken = 0, due = 0;
    /* For those who listen: whole sentences as they come. */
    const speak = end => {
      const rest = m.content.slice(spoken), part = end ? rest + (m.error || '') : rest.match(/^[^]*[.!?:]\s/)?.[0] || '';
      spoken += part.length;
      if (part) live.append(el('p', null, part));
    };
    const show = () => {
      due = 0;
      const v = mine === c && views.find(w => w.m === m);
      if (!v) return;
      draw(v);
      speak(false);
    };
    withRequest(c, m);
    running.set(c.id, {c, m, stop: stopper});
    live.replaceChildren();
    stick = true;
    render();
    toEnd(true);
    save();
    let next = 0;
    try {
      await api.stream('v1/chat/completions', m.request, {signal: stopper.signal, onEvent: event => {
        take(m, event, begun);
        due ||= requestAnimationFrame(show);
        if (performance.now() < next) return;
        next = Infinity; /* a tenth of the time at most */
        const now = performance.now();
        store.put(mine, true).catch(() => {}).finally(() => { next = 10 * performance.now() - 9 * now + 250; });
      }});
    } catch (error) {
      if (error.name === 'AbortError') m.finish_reason = 'stopped';
      else m.error = error.message;
    }
    cancelAnimationFrame(due);
    running.delete(mine.id);
    if (mine === c) {
      render();
      speak(true);
    }
    if (!mine.removed) await save(mine);
  }

  function stop() {
    running.get(c.id)?.stop.abort();
  }

  document.addEventListener('keydown', e => {
    if (e.key === 'Escape' && !e.defaultPrevented && !document.querySelector('dialog[open], :popover-open')) stop();
  });

  return {
    /* Without an id, or with one that is gone: a new conversation. With a message, goes there. */
    async open(id, message) {
      composer.keep();
      const was = c, empty = !c.head;
      const next = running.get(id)?.c || (id && await store.get(id)) || store.newConversation();
      if (message && next.messages[message]) next.head = store.leaf(next, message);
      for (const m of Object.values(next.messages)) withRequest(next, m);
      const draft = await store.draft(next.head ? next.id : 'new'), typed = !c.head && !next.head && composer.typed();
      composer.keep();
      if (empty && !next.head && c === was && c.head) return; /* its first message was sent meanwhile */
      c = next;
      stick = !message;
      live.replaceChildren();
      render();
      if (!typed) composer.set(draft);
      toEnd(!message);
      if (message) turns.querySelector(`[data-id="${CSS.escape(message)}"]`)?.scrollIntoView({block: 'center'});
      composer.focus();
    },
    current: () => c,
    /* Another tab has changed it: what it has added appears. */
    async changed(id) {
      const next = await store.get(id);
      if (!next) return this.removed(id);
      if (c.id !== id) return;
      store.merge(c, next);
      for (const m of Object.values(c.messages)) withRequest(c, m);
      c.title = next.title;
      c.head = store.leaf(c, c.head);
      render();
    },
    removed(id) {
      const gone = running.get(id);
      if (!gone) return;
      gone.c.removed = true;
      gone.stop.abort();
    },
    running: id => running.has(id),
    renamed(id, title) {
      if (c.id !== id) return;
      c.title = title;
      render();
    },
    model: can => { welcome.model(can); composer.vision(can.vision); },
    focus: () => composer.focus(),
  };
}
