/* The promise, tried on one response: its request is sent again, cold, cached, and while others run; token ids
 * and log-probs are compared exactly as the server prints them. */
import {el, icon} from './dom.js';
import {many, number, panelButton, time} from './stats.js';

const TOKENS_MAX = 128, LOAD = 4, TOP = 3;

/* Fields that only change how a response is reported, and those that are set here. */
const DROPPED = ['stream', 'stream_options', 'return_progress', 'n', 'max_tokens', 'cache_salt', 'logprobs', 'top_logprobs'];

function request(message) {
  const body = structuredClone(message.request);
  for (const name of DROPPED) delete body[name];
  delete body.max_completion_tokens;
  const fixed = body.temperature === 0 || (Number.isInteger(body.seed) && body.seed >= 0);
  if (!fixed) body.seed = 1;
  const shown = message.usage?.completion_tokens || TOKENS_MAX;
  Object.assign(body, {max_tokens: Math.min(shown, TOKENS_MAX), logprobs: true, top_logprobs: TOP,
    return_token_ids: true, return_cache_info: true});
  return {body, fixed};
}

/* What is compared, as text: each token's id, log-prob and the log-probs of its alternatives. */
function evidence(response) {
  const choice = response.choices[0], list = choice.logprobs?.content || [];
  return {ids: choice.token_ids || [], cached: response.usage.prompt_tokens_details?.cached_tokens || 0,
    prompt: response.usage.prompt_tokens, text: choice.message.content || '', drafted: response.usage,
    tokens: list.map((t, i) => JSON.stringify([choice.token_ids?.[i], t.token, t.logprob,
      t.top_logprobs.map(a => [a.token, a.logprob])])), list};
}

/* 64 bits of FNV-1a, to show; the comparison itself is of everything. */
function checksum(run) {
  let h = 0xcbf29ce484222325n;
  for (const byte of new TextEncoder().encode(run.tokens.join()))
    h = BigInt.asUintN(64, (h ^ BigInt(byte)) * 0x100000001b3n);
  return h.toString(16).padStart(16, '0');
}

function difference(a, b) {
  const n = Math.max(a.tokens.length, b.tokens.length);
  for (let i = 0; i < n; i++) if (a.tokens[i] !== b.tokens[i]) return i;
  return -1;
}

const shown = text => (text == null ? 'nothing' : `“${text.replace(/\n/g, '⏎')}”`);
function describe(a, b, at) {
  const one = r => (r.list[at] ? `${shown(r.list[at].token)} (log-prob ${r.list[at].logprob})` : 'no token');
  return `Token ${at + 1} differs: ${one(a)} and ${one(b)}`;
}

/* One cell a token; those that differ from the first run stand out. */
function strip(run, first) {
  const row = el('div', {class: 'proof-strip', 'aria-hidden': 'true'});
  for (const [i, t] of run.list.entries()) {
    const cell = el('i', {class: first && first.tokens[i] !== run.tokens[i] ? 'differs' : null});
    cell.style.opacity = .25 + .75 * Math.exp(t.logprob);
    row.append(cell);
  }
  return row;
}

/* Runs until `signal` aborts, which also ends its requests; each is another conversation, so that batches mix. */
function keepBusy(api, body, signal, salt) {
  const one = async k => {
    for (let turn = 0; !signal.aborted; turn++) {
      await api.request('v1/chat/completions', {signal, body: {model: body.model, seed: 100 * k + turn, temperature: 1,
        cache_salt: salt, ignore_eos: true, max_tokens: 1024, messages: [{role: 'user',
          content: `Tell me story number ${k + turn} about ${['a harbour', 'two trains', 'the sea', 'a garden'][k % 4]}.`}]}})
        .catch(() => new Promise(done => setTimeout(done, 200)));
    }
  };
  for (let k = 0; k < LOAD; k++) one(k);
}

async function run(message, api, signal, report) {
  const {body, fixed} = request(message);
  const send = extra => api.request('v1/chat/completions', {signal, body: {...body, ...extra}}).then(evidence);
  const salt = () => `determinism-${crypto.getRandomValues(new Uint32Array(4)).join('-')}`;
  const runs = [];
  const add = (name, note, result) => { runs.push({name, note, ...result}); report(runs, fixed); };
  const part = r => (r.cached ? `${number(r.cached)} of ${many(r.prompt, 'prompt token')} from the cache` : 'nothing from the cache');

  let r = await send({cache_salt: salt()});
  add('Alone, cold', part(r), r);
  await send({});
  r = await send({});
  add('Alone, cached', part(r), r);

  const busy = new AbortController(), stop = () => busy.abort();
  signal.addEventListener('abort', stop);
  let most = 0;
  keepBusy(api, body, busy.signal, salt());
  const look = async () => {
    while (!busy.signal.aborted) {
      const running = /^vllm:num_requests_running(?:\{.*\})? (\d+)/m.exec(await api.request('metrics').catch(() => ''));
      most = Math.max(most, Number(running?.[1] || 0));
      await new Promise(done => setTimeout(done, 100));
    }
  };
  look();
  try {
    for (const wait = performance.now() + 5000; most < LOAD && performance.now() < wait && !signal.aborted;)
      await new Promise(done => setTimeout(done, 40));
    const [cold, cached, third] = await Promise.all([send({cache_salt: salt()}), send({}), send({cache_salt: salt()})]);
    const among = `while ${many(most, 'request')} ran`;
    add('Under load, cold', `${part(cold)}, ${among}`, cold);
    add('Under load, cached', `${part(cached)}, ${among}`, cached);
    add('Under load, cold again', `${part(third)}, ${among}`, third);
  } finally {
    stop();
  }
  return {runs, fixed, busy: most};
}

/* The response on the page, where it must be the same: its text begins the others' text or is begun by it. */
function matchesPage(message, first) {
  const a = message.content || '', b = first.text;
  return a.startsWith(b) || b.startsWith(a);
}

function verdict(message, {runs, fixed}) {
  const wrong = runs.map(r => difference(runs[0], r)).findIndex(at => at >= 0);
  const at = wrong < 0 ? -1 : difference(runs[0], runs[wrong]);
  const page = !fixed || wrong >= 0 || matchesPage(message, runs[0]);
  const good = wrong < 0 && page && runs[0].tokens.length > 0;
  const compared = `${number(runs.length)} runs of ${many(runs[0].tokens.length, 'token')}`;
  return el('div', {class: `verdict ${good ? 'good' : 'bad'}`, role: 'status'}, icon(good ? 'check' : 'close'),
    el('div', null, el('b', null, good ? 'Equal bits' : 'Different'), el('p', null,
      wrong >= 0 ? `${describe(runs[0], runs[wrong], at)} (${runs[0].name} and ${runs[wrong].name}).`
        : !page ? 'The runs are equal, but their text is not that of the response above.'
          : good ? `${compared}: every token id and log-prob is the same.` : 'The response has no tokens to compare.')));
}

function rows(runs) {
  return runs.map((r, i) => {
    const at = difference(runs[0], r), ok = at < 0;
    return el('li', {class: ok ? 'equal' : 'differs'}, el('div', {class: 'proof-run'}, icon(ok ? 'check' : 'close'),
      el('div', null, el('span', {class: 'off-screen'}, ok ? 'equal: ' : 'different: '), el('b', null, r.name), el('small', null, r.note)),
      el('code', {title: 'Checksum of everything that is compared'}, checksum(r))), strip(r, i ? runs[0] : null));
  });
}

const STEPS = 5;
function panel(message, api, node, redraw) {
  const stop = new AbortController(), began = performance.now();
  node.addEventListener('panel-closed', () => stop.abort(), {once: true});
  const progress = el('progress', {max: STEPS, 'aria-label': 'Completed runs'});
  const list = el('ul', {class: 'proof-runs'}), state = el('div', {class: 'verdict-place'}, progress);
  const about = el('p', {class: 'fine'});
  const {body, fixed} = request(message);
  about.textContent = `Compared: of each of the first ${many(body.max_tokens, 'token')}, its id, its log-prob and those of its ` +
    `${TOP} most likely alternatives, digit for digit as the server prints them (the shortest digits of a 32-bit float). ` +
    (fixed ? 'The text is also compared with the response above.'
      : 'The response above was sampled without a seed, so the runs use seed 1 and are compared with each other only.');
  run(message, api, stop.signal, runs => {
    list.replaceChildren(...rows(runs));
    progress.value = runs.length;
    redraw();
  }).then(result => {
    state.replaceChildren(verdict(message, result));
    about.append(` Took ${time(performance.now() - began)}; up to ${many(result.busy, 'request')} ran at once.`);
    redraw();
  }).catch(error => {
    if (stop.signal.aborted) return;
    state.replaceChildren(el('p', {class: 'problem', role: 'alert'}, error.message));
    redraw();
  });
  return [el('p', null, 'A response depends on its request and seed alone. The request is sent again: cold, cached, and ' +
    `while ${LOAD} other requests run.`), state, list, about];
}

export function determinismButton(message, {api}) {
  return panelButton('proof', 'Determinism check', 'proof', (node, redraw) => panel(message, api, node, redraw));
}
