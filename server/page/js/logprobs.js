/* The tokens of an answer in colors of their probability, alternatives on hover and by arrow keys. */
import {el} from './dom.js';

const percent = logprob => {
  const p = 100 * Math.exp(logprob);
  return p < .1 ? '<0.1 %' : `${p.toFixed(p > 99.95 ? 0 : 1)} %`;
};
const visible = text => text.replace(/\n/g, '⏎').replace(/\t/g, '⇥')
  .replace(/^ +$/, t => '␣'.repeat(t.length)) || '∅';
const level = p => (p > .9 ? 0 : p > .6 ? 1 : p > .3 ? 2 : p > .1 ? 3 : 4);

export function createLogprobs() {
  const row = el('div', {class: 'tokens', role: 'group', 'aria-label': 'Tokens and their probabilities'});
  const card = el('div', {class: 'odds', 'aria-live': 'polite', hidden: true});
  const key = el('p', {class: 'odds-key', 'aria-hidden': 'true'},
    ['over 90 %', '60–90 %', '30–60 %', '10–30 %', 'under 10 %']
      .map((t, i) => el('span', {class: `tok p${i}`}, t)));
  const node = el('div', {class: 'logprobs'}, key, row, card);
  let list = [];

  function show(token) {
    const at = list[[...row.children].indexOf(token)];
    if (!at) return;
    const others = at.top_logprobs?.length ? at.top_logprobs : [at];
    card.replaceChildren(el('table', null, others.map(t => {
      const bar = el('i');
      bar.style.width = `${100 * Math.exp(t.logprob)}%`;
      return el('tr', {class: t.token === at.token ? 'chosen' : null}, el('td', null, visible(t.token)),
        el('td', null, percent(t.logprob)), el('td', {'aria-hidden': 'true'}, bar));
    })));
    if (!others.some(t => t.token === at.token))
      card.append(el('p', null, `Chosen: ${visible(at.token)}, ${percent(at.logprob)}`));
    card.hidden = false;
    const r = token.getClientRects()[0], home = node.getBoundingClientRect();
    const end = node.closest('.scroll')?.getBoundingClientRect().bottom ?? innerHeight, high = card.offsetHeight + 6;
    card.style.top = `${(r.bottom + high > end ? r.top - high : r.bottom + 6) - home.top}px`;
    card.style.left = `${Math.max(0, Math.min(r.left - home.left, home.width - card.offsetWidth))}px`;
  }
  const hide = () => { card.hidden = true; };

  row.addEventListener('pointerover', e => e.target.closest('.tok') && show(e.target.closest('.tok')));
  row.addEventListener('pointerleave', hide);
  row.addEventListener('focusin', e => show(e.target));
  row.addEventListener('focusout', hide);
  row.addEventListener('keydown', e => {
    const all = [...row.children], at = all.indexOf(document.activeElement);
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1}[e.key];
    if (e.key === 'Escape' && !card.hidden) {
      hide();
      e.stopPropagation();
    }
    if (to == null || !all[to]) return;
    e.preventDefault();
    all[at].tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  });

  return {node, update(tokens) {
    if (tokens.length < list.length || tokens[0] !== list[0]) row.replaceChildren();
    for (const t of tokens.slice(row.children.length))
      row.append(el('button', {type: 'button', class: `tok p${level(Math.exp(t.logprob))}`,
        tabindex: row.children.length ? -1 : 0, 'aria-label': `${visible(t.token)}, ${percent(t.logprob)}`},
      t.token.replace(/\n/g, '⏎\n') || '∅'));
    list = tokens;
  }};
}
