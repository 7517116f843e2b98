/* What a response cost, from the server's own counts and clocks: usage, timings, cache_info. */
import {el, icon, iconButton} from './dom.js';

export const number = n => Number.isFinite(n) ? n.toLocaleString('en', {maximumFractionDigits: n < 10 ? 1 : 0}) : '–';
export const many = (n, word) => `${number(n)} ${word}${n === 1 ? '' : 's'}`;
export const time = ms => !Number.isFinite(ms) ? '–' : ms < 1000 ? `${number(ms)} ms` : `${(ms / 1000).toFixed(ms < 9950 ? 2 : 1)} s`;

const STOPS = {
  none: 'The whole prompt was cached; only its last token was computed.',
  end_of_cached: 'What was cached ends here; the prompt goes on.',
  token_differs: 'The text differs here from anything cached.',
  image_differs: 'Another image is here than in anything cached.',
  inside_image: 'The equal part ends inside an image that this model reuses whole or not at all.',
  sliding_window_gone: 'More is equal, but the sliding window before that point is no longer cached.',
  no_state_saved: 'More is equal, but no recurrent state is saved there; the rest was computed again.',
  evicted: 'The continuation was cached, and was evicted to make space.',
  prompt_differs: 'This model reuses prompts whole (prefix-LM), and no cached one is equal.',
  salt: 'Nothing was cached yet.', disabled: 'The cache was not used for this request.',
};
const TIERS = {memory: 'memory', host: 'host memory', disk: 'disk'};

function place(p) {
  if (p.kind === 'template')
    return p.after_message == null ? 'before the first message' : `after message ${p.after_message + 1}`;
  if (p.message == null) return `in the ${p.kind}`;
  return `in the ${p.field || p.kind} of message ${p.message + 1} (${p.role})`;
}

/* The sentence about where reuse ended, and why. */
export function why(c) {
  const end = c.reuse_ends_at, reason = STOPS[c.stop] || c.stop;
  return end ? `Token ${number(end.token)}, ${place(end)}. ${reason}` : reason;
}

/* The numbers of a message; what the server did not report is NaN. */
export function numbers(m) {
  const u = m.usage || {}, t = m.timings || {}, d = u.completion_tokens_details || {}, p = u.prompt_tokens_details || {};
  const drafts = (d.accepted_prediction_tokens || 0) + (d.rejected_prediction_tokens || 0);
  return {
    first: t.prompt_ms ?? m.ttft_ms ?? NaN, browser: m.ttft_ms ?? NaN,
    /* The rate of the tokens after the first one; with one token there is none. */
    rate: t.predicted_n > 1 && t.predicted_ms > 0 ? t.predicted_per_second : NaN,
    prefill: t.prompt_n > 0 && t.prompt_ms > 0 ? t.prompt_per_second : NaN, took: t.predicted_ms ?? NaN,
    prompt: u.prompt_tokens ?? NaN, cached: p.cached_tokens ?? NaN, images: p.image_tokens ?? 0,
    output: u.completion_tokens ?? NaN, reasoning: d.reasoning_tokens ?? 0, drafts,
    accepted: d.accepted_prediction_tokens || 0,
  };
}

function bar(n, c) {
  const equal = Math.max(c?.equal_tokens || 0, n.cached), loaded = Math.min(c?.loaded_tokens || 0, n.cached);
  const parts = [['reused', n.cached - loaded, 'reused from memory'],
    ['loaded', loaded, `loaded from ${TIERS[c?.tier] || 'disk'}`],
    ['again', equal - n.cached, 'equal, computed again'], ['computed', n.prompt - equal, 'computed'],
    ['output', n.output, 'generated']].filter(([, size]) => size > 0);
  const label = parts.map(([, size, text]) => `${many(size, 'token')} ${text}`).join(', ');
  const row = el('div', {class: 'stat-bar', role: 'img', 'aria-label': label}, parts.map(([kind, size]) => {
    const part = el('i', {class: `fill-${kind}`});
    part.style.flexGrow = size;
    return part;
  }));
  return [row, el('ul', {class: 'stat-key'}, parts.map(([kind, size, text]) =>
    el('li', null, el('i', {class: `fill-${kind}`}), el('b', null, number(size)), ` ${text}`)))];
}

function details(m, close) {
  const n = numbers(m), c = m.cache_info, share = n.prompt ? 100 * n.cached / n.prompt : NaN;
  const big = (label, value, title) => el('div', {title}, el('dd', null, value), el('dt', null, label));
  const row = (label, value, note) => value && [el('dt', null, label), el('dd', null, value, note && el('small', null, note))];
  if (!m.usage) return [el('p', null, 'The server reported no numbers for this response: it was stopped or failed.')];
  return [
    el('dl', {class: 'stat-big'}, big('to the first token', time(n.first), 'From the request’s arrival at the server'),
      big('tokens per second', number(n.rate), n.rate ? `${number(n.output - 1)} tokens in ${time(n.took)}, after the first` : ''),
      big('of the prompt reused', Number.isFinite(share) ? `${number(share)} %` : '–')),
    ...bar(n, c),
    el('dl', {class: 'stat-rows'}, [
      row('Prompt', many(n.prompt, 'token'), n.images > 0 && `${number(n.images)} of images`),
      row('From the cache', many(n.cached, 'token'), c?.loaded_tokens > 0 && `${number(c.loaded_tokens)} from ${TIERS[c.tier]}`),
      row('Generated', many(n.output, 'token'), n.reasoning > 0 && `${number(n.reasoning)} of reasoning`),
      row('Draft tokens accepted', n.drafts ? `${number(n.accepted)} of ${number(n.drafts)}` : 'none drafted',
        n.drafts > 0 && `acceptance rate ${number(100 * n.accepted / n.drafts)} %`),
      Number.isFinite(n.browser) && row('First token in the browser', time(n.browser)),
      m.model && row('Model', m.model),
    ].filter(Boolean).flat()),
    c && el('p', {class: 'stat-why'}, el('b', null, 'Where reuse ended: '), why(c)),
    el('button', {type: 'button', class: 'stat-node', click: () => {
      close();
      dispatchEvent(new CustomEvent('kvasir-node', {detail: m.id}));
      location.hash = 'cache';
    }}, icon('cache'), 'Show it in the cache'),
  ];
}

/* A panel that a button opens beside itself; Escape and a click elsewhere close it. fill() -> its nodes. */
export function panelButton(name, label, kind, fill) {
  const panel = el('div', {class: `float ${kind}`, popover: 'auto', role: 'dialog', 'aria-label': label, tabindex: -1});
  const place = () => {
    const at = button.getBoundingClientRect(), width = panel.offsetWidth, height = panel.offsetHeight;
    if (innerWidth < 600) return panel.classList.add('sheet'); /* at the lower edge of a phone */
    panel.classList.remove('sheet');
    panel.style.left = `${Math.max(8, Math.min(at.left - 16, innerWidth - width - 8))}px`;
    const above = at.top - height - 8;
    panel.style.top = `${at.bottom + 8 + height < innerHeight || above < 8 ? Math.max(8, Math.min(at.bottom + 8, innerHeight - height - 8)) : above}px`;
  };
  const button = iconButton(name, label, () => {
    if (panel.matches(':popover-open')) return panel.hidePopover();
    if (!panel.isConnected) document.body.append(panel);
    const redraw = () => { if (panel.matches(':popover-open')) place(); };
    panel.replaceChildren(el('div', {class: 'float-head'}, el('h2', null, label), iconButton('close', 'Close', () => panel.hidePopover())),
      ...fill(panel, redraw).filter(Boolean));
    panel.showPopover();
    place();
    panel.focus();
  }, {'aria-expanded': 'false', 'aria-haspopup': 'dialog'});
  panel.addEventListener('toggle', e => {
    const open = e.newState === 'open';
    button.setAttribute('aria-expanded', open);
    if (open) return;
    panel.dispatchEvent(new Event('panel-closed'));
    if (panel.contains(document.activeElement) || document.activeElement === document.body) button.focus();
    panel.remove();
  });
  return button;
}

export const statsButton = message => panelButton('info', 'Statistics of this response', 'stats',
  panel => details(message, () => panel.hidePopover()));
