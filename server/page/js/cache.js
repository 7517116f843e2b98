/* The Cache tab: the radix tree, live while it is seen; what a node holds, and of which message. */
import {el, icon, iconButton, toast} from './dom.js';
import {createMap} from './cache_map.js';
import {createDiagram, picturesOf, readTree, TIERS} from './cache_tree.js';
import {many, number} from './stats.js';

const POLL_MS = 1000, MAP_MS = 2500;
const ROLES = {system: 'System prompt', user: 'You', assistant: 'Response', tool: 'Tool result', tools: 'Tools', documents: 'Documents'};
const bytes = n => (n < 2 ** 20 ? `${number(n / 1024)} KiB` : n < 2 ** 30 ? `${number(n / 2 ** 20)} MiB` : `${(n / 2 ** 30).toFixed(1)} GiB`);

/* Prometheus text: sums over the series of each name; with `label`, of each of its values. */
function metric(text, name, label) {
  let sum = NaN;
  for (const [, labels, value] of text.matchAll(new RegExp(`^${name}(\\{.*\\})? (\\S+)$`, 'gm')))
    if (!label || labels?.includes(label)) sum = (sum || 0) + Number(value);
  return sum;
}

export function mountCache(root, {api, conversations, openMessage}) {
  const map = createMap({api, conversations});
  let tree = null, before = '', version = 0, timer = 0, on = false, hits = [], hit = -1, stale = false, mapped = -MAP_MS;

  const zoomed = el('output', {'aria-label': 'Zoom'}, '100 %');
  const figures = el('dl', {class: 'cache-figures'}), status = el('p', {class: 'live-state', role: 'status'});
  const details = el('aside', {class: 'node-details', 'aria-label': 'Selected node', hidden: true});
  const found = el('span', {class: 'matches', role: 'status'});
  const empty = el('div', {class: 'cache-empty', hidden: true}, icon('cache'), el('h2', null, 'Nothing is cached yet'),
    el('p', null, 'Send a message: its prompt and its response appear here as branches of a tree.'));
  const diagram = createDiagram({onSelect: showNode, onView: scale => { zoomed.textContent = `${Math.round(100 * scale)} %`; }});
  const search = el('input', {type: 'search', placeholder: 'Search in your chats', 'aria-label': 'Search the cache', input: find,
    keydown: e => {
      if (e.key === 'Enter' && hits.length) {
        e.preventDefault();
        hit = (hit + (e.shiftKey ? hits.length - 1 : 1)) % hits.length;
        diagram.select(hits[hit].id, true);
        said();
      } else if (e.key === 'Escape' && search.value) {
        e.stopPropagation();
        search.value = '';
        find();
      }
    }});

  function said() {
    found.textContent = !search.value.trim() ? '' : !hits.length ? 'no match'
      : hit < 0 ? `${many(hits.length, 'match').replace('matchs', 'matches')}` : `${hit + 1} of ${hits.length}`;
  }
  function find() {
    hits = diagram.find(search.value);
    hit = -1;
    said();
  }

  const legend = el('ul', {class: 'cache-legend', 'aria-label': 'Legend'},
    [['own', 'your chats'], ['memory', 'others, in memory'], ['host', 'in host memory'], ['disk', 'on disk'], ['running', 'running']].map(([kind, text]) =>
      el('li', {class: `of-${kind}`}, el('i', {class: kind}), text)));
  root.classList.add('cache-view');
  root.append(
    el('header', {class: 'cache-head'}, el('div', {class: 'cache-title'}, el('h1', null, 'Prefix cache'), status), figures),
    el('div', {class: 'cache-tools', role: 'toolbar', 'aria-label': 'Diagram'},
      el('label', {class: 'cache-search'}, icon('search'), search, found),
      el('div', {class: 'tool-group'}, el('button', {type: 'button', click: () => diagram.foldAll(true)}, 'Expand all'),
        el('button', {type: 'button', click: () => diagram.foldAll(false)}, 'Collapse all')),
      el('div', {class: 'tool-group'}, el('button', {type: 'button', 'aria-label': 'Zoom out', click: () => diagram.zoom(.8)}, '−'), zoomed,
        el('button', {type: 'button', 'aria-label': 'Zoom in', click: () => diagram.zoom(1.25)}, '+'),
        el('button', {type: 'button', click: diagram.fit}, 'Fit'))),
    el('div', {class: 'cache-body'}, diagram.node, empty, details),
    legend);

  /* ---- the selected node ---- */

  const titleOf = u => u.chat.title || 'Untitled chat';
  function quote(u, p, n) {
    const id = p.message || u.tip.id, cut = !p.image && (p.from < n.start || p.to > n.end);
    const text = p.text.replace(/\s+/g, ' ').trim();
    return el('li', null, el('button', {type: 'button', class: 'quote', click: () => openMessage(u.chat.id, id)},
      p.image && el('img', {src: p.image, alt: 'Image'}),
      el('span', null, el('b', null, ROLES[p.role] || p.role), ` ${p.image ? '' : text.length > 160 ? `${text.slice(0, 160)}…` : text}`,
        el('small', null, `${many(Math.min(p.to, n.end) - Math.max(p.from, n.start), 'token')}${cut ? ', a part of it' : ''}`))));
  }

  function showNode(n) {
    details.hidden = !n;
    if (!n) return details.replaceChildren();
    const held = document.activeElement && details.contains(document.activeElement) ? details.scrollTop : -1;
    const fact = (label, value) => value && [el('dt', null, label), el('dd', null, value)];
    const images = picturesOf(n);
    /* What chats have in common is told once. */
    const told = new Map();
    for (const u of n.uses)
      for (const p of u.parts) {
        const key = `${u.chat.id} ${p.message} ${p.from} ${p.kind}`;
        if (!told.has(key)) told.set(key, [u, p]);
      }
    const chats = new Map();
    for (const [u, p] of told.values()) chats.set(u.chat.id, [...(chats.get(u.chat.id) || []), [u, p]]);
    for (const u of n.uses) if (!chats.has(u.chat.id)) chats.set(u.chat.id, [[u, null]]);
    const list = [...chats.values()].slice(0, 12);
    details.replaceChildren(
      el('header', null, el('h2', null, `Tokens ${number(n.start)} to ${number(n.end - 1)}`), iconButton('close', 'Close', () => diagram.select(null))),
      images.length ? el('div', {class: 'node-images'}, images.slice(0, 6).map(src => el('img', {src, alt: 'Image of this chat'}))) : '',
      el('dl', {class: 'node-facts'}, [fact('Length', many(n.length, 'token')), fact('Where', TIERS[n.tier]),
        fact('Images', n.images && number(n.images)), fact('Continuations', number(n.children)),
        fact('Running', n.running && many(n.running, 'request')),
        n.tier === 'memory' && fact('Last used', n.uses_ago ? `${number(n.uses_ago)} cache uses ago` : 'just now')].filter(Boolean).flat()),
      el('h3', null, chats.size ? `In ${many(chats.size, 'chat')} of this browser` : 'In no chat of this browser'),
      ...chats.size ? [] : [el('p', {class: 'fine'}, 'It belongs to another client, to a chat that was deleted, or to tokens that the chat template leaves out of later turns (reasoning).')],
      ...list.map(uses => el('section', null, el('button', {type: 'button', class: 'chat-link', click: () => openMessage(uses[0][0].chat.id, uses.at(-1)[1]?.message || uses[0][0].tip.id)},
        icon('chat'), titleOf(uses[0][0])), el('ul', {class: 'quotes'}, uses.filter(([, p]) => p).slice(0, 8).map(([u, p]) => quote(u, p, n))),
        uses.every(([, p]) => !p) && el('p', {class: 'fine'}, 'Only text of the chat template.'))),
      chats.size > 12 ? el('p', {class: 'fine'}, `and ${many(chats.size - 12, 'chat')} more`) : '');
    if (held >= 0) details.scrollTop = held;
  }

  /* ---- live ---- */

  function numbers(text) {
    const asked = metric(text, 'vllm:prefix_cache_queries_total'), hit = metric(text, 'vllm:prefix_cache_hits_total');
    const tier = name => metric(text, 'kvasir:cache_tier_bytes', `"${name}"`);
    const rows = [['cached tokens', number(tree?.tokens)], [`of ${bytes(metric(text, 'kvasir:kv_arena_bytes'))} memory`, bytes(metric(text, 'kvasir:kv_arena_bytes_used'))],
      ['prompt tokens reused', asked ? `${number(100 * hit / asked)} %` : '–'],
      ['running', number(metric(text, 'vllm:num_requests_running'))],
      ...['host', 'disk'].filter(t => tier(t) > 0).map(t => [t === 'host' ? 'in host memory' : 'on disk', bytes(tier(t))])];
    figures.replaceChildren(...rows.map(([label, value]) => el('div', null, el('dd', null, value), el('dt', null, label))));
  }

  function drawAll() {
    map.apply(tree);
    diagram.set(tree);
    empty.hidden = tree.nodes.length > 0;
    diagram.node.hidden = !tree.nodes.length;
    for (const kind of ['host', 'disk', 'running'])
      legend.querySelector(`.of-${kind}`).hidden = !tree.nodes.some(n => n.tier === kind || (kind === 'running' && n.running));
    const selected = tree.byId.get(diagram.view.selected);
    if (diagram.view.selected && !selected) diagram.select(null);
    else if (selected) showNode(selected);
    goTo();
    if (search.value) { hits = diagram.find(search.value); said(); }
  }

  /* Selects the node in which a message's tokens end, as soon as it is known. */
  let wanted = null;
  addEventListener('kvasir-node', e => { wanted = {id: e.detail, until: performance.now() + 8000}; });
  function goTo() {
    if (!wanted) return;
    const n = tree.nodes.filter(k => k.uses.some(u => u.parts.some(p => p.message === wanted.id))).at(-1);
    if (n) diagram.select(n.id, true);
    else if (performance.now() > wanted.until) toast('This response is no longer cached.');
    else return;
    wanted = null;
  }

  const alive = () => on && !document.hidden;
  async function look() {
    clearTimeout(timer);
    if (!alive()) return;
    try {
      const [text, answer] = await Promise.all([api.request('metrics'), api.request('cache_tree')]);
      if (!alive()) return;
      const now = JSON.stringify(answer);
      if (now !== before) {
        const first = !tree;
        tree = readTree(answer, ++version);
        before = now;
        if (first) await map.refresh(tree, alive);
        drawAll();
        stale = true;
      }
      if (wanted) goTo();
      numbers(text);
      status.textContent = `Live · ${number(tree.nodes.length)} of ${many(Math.max(tree.total, tree.nodes.length), 'node')}`;
      status.classList.remove('lost');
      if (stale && performance.now() - mapped > MAP_MS) { /* it reads all chats */
        stale = false;
        map.refresh(tree, alive).then(learnt => {
          mapped = performance.now();
          if (learnt && alive()) drawAll();
        });
      }
    } catch (error) {
      status.textContent = error.message;
      status.classList.add('lost');
    }
    clearTimeout(timer);
    if (alive()) timer = setTimeout(look, POLL_MS);
  }
  document.addEventListener('visibilitychange', look);
  new ResizeObserver(() => diagram.resize()).observe(root);

  return {
    show() {
      if (on) return;
      on = stale = true; /* chats may have changed meanwhile */
      look();
    },
    hide() { on = false; clearTimeout(timer); },
  };
}
