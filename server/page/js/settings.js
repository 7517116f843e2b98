/* What requests ask for, the theme, the key. Kept in this browser. */
import {key, setKey} from './api.js';
import {el, icon, dialog} from './dom.js';
import {setting} from './store.js';

/* name, label, step, least, most, what it does */
const NUMBERS = [
  ['temperature', 'Temperature', 'any', 0, null, '0 always takes the most likely token'],
  ['top_p', 'Top p', 'any', 0, 1, 'tokens up to this total probability'],
  ['top_k', 'Top k', 1, -1, null, 'this many of the most likely tokens'],
  ['min_p', 'Min p', 'any', 0, 1, 'minimum share of the top probability'],
  ['repetition_penalty', 'Repetition penalty', 'any', 0, null, '1: none'],
  ['presence_penalty', 'Presence penalty', 'any', -2, 2, '0: none'],
  ['frequency_penalty', 'Frequency penalty', 'any', -2, 2, '0: none'],
  ['max_tokens', 'Max tokens', 1, 1, null, 'length of a response'],
  ['seed', 'Seed', 1, null, null, 'the same seed gives the same response'],
];
const REASONING = [['', 'Up to the model'], ['off', 'Off'], ['on', 'On'], ['low', 'Low effort'], ['medium', 'Medium effort'],
  ['high', 'High effort']];
const PRESETS = {'Server defaults': {}, Precise: {temperature: '0'}, Balanced: {temperature: '0.7', top_p: '0.9'},
  Creative: {temperature: '1', min_p: '0.05'}};
const THEMES = [['', 'auto', 'System'], ['light', 'sun', 'Light'], ['dark', 'moon', 'Dark']];
/* What a preset holds. */
const SAMPLING = [...NUMBERS.map(n => n[0]), 'stop'];

function object(text, name) {
  if (!text?.trim()) return null;
  let value;
  try { value = JSON.parse(text); } catch (error) { throw new Error(`${name}: not JSON. ${error.message}`); }
  if (typeof value !== 'object' || !value || Array.isArray(value)) throw new Error(`${name}: not a JSON object.`);
  return value;
}

/* The fields of a request and, as `system`, the system prompt. Throws where a field is wrong: {field, message}. */
function toRequest(values) {
  const out = {}, fail = (field, message) => { throw Object.assign(new Error(message), {field}); };
  const get = (field, name) => {
    try { return object(values[field], name); } catch (error) { return fail(field, error.message); }
  };
  for (const [name, label] of NUMBERS) {
    if (!values[name]) continue;
    out[name] = Number(values[name]);
    if (!Number.isFinite(out[name])) fail(name, `${label} is not a number.`);
  }
  const stop = (values.stop || '').split('\n').filter(Boolean).map(s => s.replace(/\\n/g, '\n').replace(/\\t/g, '\t'));
  if (stop.length) out.stop = stop;
  const schema = get('schema', 'JSON Schema');
  if (schema) out.response_format = {type: 'json_schema', json_schema: {name: 'answer', schema}};
  if (values.reasoning === 'on' || values.reasoning === 'off') out.enable_thinking = values.reasoning === 'on';
  else if (values.reasoning) out.reasoning_effort = values.reasoning;
  if (values.logprobs) Object.assign(out, {logprobs: true, top_logprobs: 5});
  Object.assign(out, get('extra', 'Extra request parameters'));
  if (out.stream === false) fail('extra', 'The page streams: `stream` has to stay true.');
  if (values.system?.trim()) out.system = values.system.trim();
  return out;
}

export function createSettings({onKey}) {
  const values = setting('settings') || {}, own = setting('presets') || {};
  let sheet = null, fields = {}, server = {};

  function set(name, value) {
    if (value === '' || value === false) delete values[name];
    else values[name] = value;
    setting('settings', values);
    check();
  }

  /* Marks the field that is wrong; -> the request, or null. */
  function check() {
    let wrong = null, out = null;
    try { out = toRequest(values); } catch (error) { wrong = error; }
    for (const [name, f] of Object.entries(fields)) {
      const bad = wrong?.field === name || f.validity?.badInput;
      f.setAttribute('aria-invalid', Boolean(bad));
      const problem = f.parentNode.querySelector('.problem');
      if (problem) problem.textContent = wrong?.field === name ? wrong.message : '';
    }
    return {out, wrong};
  }

  const labelled = (label, field, hint) => el('label', {class: 'field'}, el('span', null, label), field,
    hint && el('small', null, hint));
  function input(name, tag, attributes) {
    const f = fields[name] = el(tag, {name, ...attributes, input: () => set(name, f.type === 'checkbox' ? f.checked : f.value)});
    if (f.type === 'checkbox') f.checked = Boolean(values[name]);
    else f.value = values[name] ?? '';
    return f;
  }
  const json = (name, label, hint, example) => el('label', {class: 'field'}, el('span', null, label),
    input(name, 'textarea', {rows: 4, class: 'mono', spellcheck: 'false', placeholder: example}),
    el('small', {class: 'problem', role: 'status'}), el('small', null, hint));
  const part = (title, ...children) => el('section', null, el('h3', null, title), ...children);

  function presets() {
    const all = () => ({...PRESETS, ...own});
    const sampling = v => JSON.stringify(SAMPLING.map(n => v[n] ?? ''));
    const choice = el('select', {'aria-label': 'Preset', change: () => {
      const preset = all()[choice.value];
      if (!preset) return;
      for (const n of SAMPLING) {
        if (preset[n] === undefined) delete values[n];
        else values[n] = preset[n];
        fields[n].value = values[n] ?? '';
      }
      setting('settings', values);
      show();
    }});
    const name = el('input', {'aria-label': 'Name of the preset', placeholder: 'Save as …', maxlength: 40});
    const remove = el('button', {type: 'button', click: () => {
      delete own[choice.value];
      setting('presets', own);
      show();
    }}, 'Delete');
    const save = el('form', {class: 'row', submit: e => {
      e.preventDefault();
      if (!name.value.trim()) return name.focus();
      own[name.value.trim()] = Object.fromEntries(SAMPLING.filter(n => values[n] !== undefined).map(n => [n, values[n]]));
      setting('presets', own);
      name.value = '';
      show();
    }}, name, el('button', null, 'Save'), remove);
    const show = () => {
      const now = Object.keys(all()).find(n => sampling(all()[n]) === sampling(values));
      choice.replaceChildren(...(now ? [] : [el('option', {value: ''}, 'Custom')]),
        ...Object.keys(all()).map(n => el('option', {value: n, selected: n === now}, n)));
      remove.hidden = !now || !(now in own);
      check();
    };
    show();
    return {node: el('div', {class: 'presets'}, labelled('Preset', choice), save), show};
  }

  function open() {
    fields = {};
    const theme = el('div', {class: 'segments', role: 'radiogroup', 'aria-label': 'Theme'}, THEMES.map(([value, symbol, label]) =>
      el('label', null, el('input', {type: 'radio', name: 'theme', value, checked: (setting('theme') || '') === value,
        change: () => setTheme(value)}), icon(symbol), label)));
    const numbers = el('div', {class: 'pairs'}, NUMBERS.map(([name, label, step, min, max, hint]) => labelled(label,
      input(name, 'input', {type: 'number', step, min, max, inputmode: 'decimal',
        placeholder: server[name]}), hint)));
    const stop = labelled('Stop strings', input('stop', 'textarea', {rows: 2, class: 'mono', spellcheck: 'false'}),
      'one per line; \\n is a line break');
    const body = el('div', {class: 'settings'},
      part('Conversation', labelled('System prompt', input('system', 'textarea', {rows: 4,
        placeholder: 'What the model should know or how it should answer'})),
      labelled('Reasoning', input('reasoning', 'select', {})),
      el('label', {class: 'check'}, input('logprobs', 'input', {type: 'checkbox'}), 'Show token probabilities')),
      part('Sampling', numbers, stop),
      part('Structured output', json('schema', 'JSON Schema', 'responses are JSON that matches it',
        '{"type": "object", "properties": {"color": {"type": "string"}}}')),
      part('Look', theme),
      key() && part('API key', el('button', {type: 'button', click: () => { setKey(''); sheet.close(); onKey(); }},
        icon('key'), 'Forget the key')),
      el('details', null, el('summary', null, icon('chevron'), 'Advanced'), json('extra', 'Extra request parameters',
        'a JSON object, added to each request', '{"min_tokens": 8}')));
    fields.reasoning.append(...REASONING.map(([value, label]) => el('option', {value}, label)));
    fields.reasoning.value = values.reasoning ?? '';
    const p = presets();
    numbers.before(p.node);
    numbers.addEventListener('input', p.show);
    stop.addEventListener('input', p.show);
    if (values.extra) body.querySelector('details').open = true;
    sheet = dialog('Settings', body, [], 'sheet');
    sheet.addEventListener('close', () => { sheet = null; fields = {}; });
    check();
  }

  function setTheme(value) {
    setting('theme', value || null);
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
  }

  return {
    open,
    /* What is in force where a setting is empty, of the server's /props. */
    defaults({n_ctx, params = {}} = {}) {
      const {repeat_penalty: repetition_penalty, max_tokens: most, top_k: k, ...same} = params;
      server = {...same, repetition_penalty, seed: 'random', top_k: k > 0 ? k : k != null && 'all',
        max_tokens: most > 0 ? most : n_ctx && `up to ${n_ctx}`};
      for (const [name, f] of Object.entries(fields)) if (name in server) f.placeholder = server[name] ?? '';
    },
    /* What to send; null where a setting is wrong: then the settings are open at it. */
    request() {
      const {out, wrong} = check();
      if (!wrong) return out;
      if (!sheet) open();
      const f = fields[wrong.field];
      f.closest('details')?.setAttribute('open', '');
      f.focus();
      return null;
    },
  };
}
