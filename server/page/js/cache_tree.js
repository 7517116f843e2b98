/* The radix tree of the prefix cache as a diagram: what is shown of it, where, and how it is moved. Bars are
 * nodes, prompts run from left to right and branch where they differ: first this browser's chats, then the
 * last used. */
import {el, icon} from './dom.js';
import {many, number} from './stats.js';

const ROW = 38, BAR = 28, GAP = 22, ROWS = 48, MORE = 40;

/* From the server's list, in its order, the last used first. */
export function readTree(answer, version) {
  const nodes = answer.nodes.map(n => ({...n, length: n.end - n.start, kids: [], uses: []}));
  const byId = new Map(nodes.map(n => [n.id, n]));
  for (const n of nodes) {
    n.up = n.parent == null ? null : nodes[n.parent];
    n.level = n.up ? n.up.level + 1 : 1;
    n.up?.kids.push(n);
  }
  return {nodes, byId, version, tops: nodes.filter(n => !n.up), total: answer.total_nodes, tokens: answer.total_tokens};
}

/* Ids of the nodes that are shown: paths to the latest leaves, to those of this browser's chats, to what was
 * searched for, and what was opened; nothing below what was closed. */
function choose(tree, view) {
  const shown = new Set(), add = n => { for (; n && !shown.has(n); n = n.up) shown.add(n); };
  const leaves = tree.nodes.filter(n => !n.kids.length);
  leaves.slice(0, ROWS).forEach(add);
  leaves.filter(n => n.uses.length).slice(0, ROWS).forEach(add);
  if (view.all) leaves.forEach(add);
  for (const [id, count] of view.opened) tree.byId.get(id)?.kids.slice(0, count).forEach(add);
  tree.tops.slice(0, view.opened.get(0) || 0).forEach(add);
  view.found.forEach(add);
  if (view.selected) add(tree.byId.get(view.selected));
  const closed = n => n && (view.closed.has(n.id) || closed(n.up));
  return n => shown.has(n) && !closed(n.up);
}

const count = n => n.kids.reduce((sum, k) => sum + count(k), 1);

/* -> rows in drawing order: nodes with x, y, width; and stubs for what is left out. */
export function layout(tree, view) {
  const visible = choose(tree, view), out = [];
  const ownFirst = list => [...list.filter(n => n.uses.length).sort((a, b) => count(a) - count(b)), ...list.filter(n => !n.uses.length)];
  let row = 0;
  const stub = (up, hidden) => out.push({stub: true, up, id: up ? -up.id - 1 : -1, hidden, row: ++row,
    x: up ? up.x + up.w + GAP : 0, w: 132, level: up ? up.level + 1 : 1,
    nodes: hidden.reduce((sum, k) => sum + count(k), 0)});
  const put = (n, first) => {
    if (!first) row++;
    n.row = row;
    n.x = n.up ? n.up.x + n.up.w + GAP : 0;
    n.w = Math.round(n.uses.some(u => u.parts.length) ? Math.min(280, 120 + 8 * Math.sqrt(n.length))
      : Math.min(200, 44 + 5 * Math.sqrt(n.length)));
    n.folded = view.closed.has(n.id) && n.kids.length > 0;
    out.push(n);
    if (n.folded) return;
    const kids = ownFirst(n.kids.filter(visible)), hidden = n.kids.filter(k => !visible(k));
    kids.forEach((k, i) => put(k, i === 0));
    if (hidden.length && kids.length) stub(n, hidden);
    else if (hidden.length) { n.folded = true; n.stubbed = true; }
  };
  ownFirst(tree.tops.filter(visible)).forEach((n, i) => put(n, i === 0));
  const rest = tree.tops.filter(n => !visible(n));
  if (rest.length) stub(null, rest);
  for (const n of out) n.y = n.row * ROW;
  return {rows: out, width: Math.max(1, ...out.map(n => n.x + n.w)), height: (row + 1) * ROW};
}

/* What stands on a bar, and in its accessible name. */
export function label(n) {
  const parts = n.uses[0]?.parts || [], part = parts.find(p => p.text.trim()) || parts[0];
  if (!part) return '';
  const words = part.text.replace(/\s+/g, ' ').trim();
  return (part.from < n.start ? '… ' : '') + (words || (['image', 'video'].includes(part.kind) ? part.kind : part.role));
}
export const picturesOf = n => [...new Set(n.images ? n.uses.flatMap(u => u.parts.map(p => p.image)).filter(Boolean) : [])];
export const TIERS = {memory: 'in memory', host: 'in host memory', disk: 'on disk'};

function name(n) {
  return [label(n) || (n.uses.length && 'chat template'), `${many(n.length, 'token')} from ${number(n.start)} on`, TIERS[n.tier], n.images && many(n.images, 'image'),
    n.running && `${number(n.running)} running`, n.uses.length && 'of this browser’s chats',
    n.kids.length > 1 && many(n.kids.length, 'branch').replace('branchs', 'branches')].filter(Boolean).join(', ');
}

export function createDiagram({onSelect, onView}) {
  const view = {closed: new Set(), opened: new Map(), found: new Set(), selected: null, all: false, query: ''};
  const pose = {x: 24, y: 24, scale: 1};
  let tree = null, drawn = {rows: [], width: 1, height: 1}, seen = null, touched = false;
  const wires = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  wires.setAttribute('aria-hidden', 'true');
  const bars = el('div', {class: 'nodes', role: 'tree', 'aria-label': 'Nodes of the prefix cache'});
  const paper = el('div', {class: 'paper'}, wires, bars);
  const node = el('div', {class: 'diagram'}, paper);
  const items = () => [...bars.children];

  function move(change) {
    Object.assign(pose, change);
    pose.scale = Math.min(2.5, Math.max(.05, pose.scale));
    /* Some of it always stays in sight. */
    const {clientWidth: w, clientHeight: h} = node;
    pose.x = Math.min(w - 60, Math.max(60 - drawn.width * pose.scale, pose.x));
    pose.y = Math.min(h - 40, Math.max(40 - drawn.height * pose.scale, pose.y));
    paper.style.transform = `translate(${pose.x}px, ${pose.y}px) scale(${pose.scale})`;
    paper.classList.toggle('far', pose.scale < .55);
    onView(pose.scale);
  }
  function zoom(factor, x = node.clientWidth / 2, y = node.clientHeight / 2) {
    touched = true;
    const scale = Math.min(2.5, Math.max(.05, pose.scale * factor)), by = scale / pose.scale;
    move({scale, x: x - (x - pose.x) * by, y: y - (y - pose.y) * by});
  }
  function fit() {
    const margin = 24, scale = Math.min(1, (node.clientWidth - 2 * margin) / drawn.width, (node.clientHeight - 2 * margin) / drawn.height);
    move({scale, x: margin, y: Math.max(margin, (node.clientHeight - drawn.height * scale) / 2 * (scale < 1 ? 0 : .2))});
  }
  /* At a readable size, from the top left. */
  function home() {
    touched = false;
    move({scale: node.clientWidth < 500 ? .85 : Math.max(.9, Math.min(1, (node.clientWidth - 48) / drawn.width)), x: 24, y: 24});
  }
  function reveal(n) {
    const {clientWidth: w, clientHeight: h} = node, s = pose.scale;
    const left = pose.x + n.x * s, top = pose.y + n.y * s, x = left < 16 ? 16 - left : Math.min(0, w - 16 - left - Math.min(n.w * s, w - 32));
    move({x: pose.x + x, y: pose.y + (top < 16 ? 16 - top : Math.min(0, h - 24 - top - ROW * s))});
  }

  function bar(n, at) {
    const set = {id: `node-${n.id}`, role: 'treeitem', 'aria-level': n.level, tabindex: -1, 'data-id': n.id};
    if (n.stub)
      return el('div', {...set, class: 'node stub', 'aria-label': `${many(n.nodes, 'more node')}: show some of them`},
        icon('plus'), `${number(n.nodes)} more`);
    const images = picturesOf(n), own = n.uses.length > 0, branches = n.kids.length > 0;
    const faded = view.query && !view.found.has(n);
    return el('div', {...set, 'aria-label': name(n), 'aria-selected': String(n.id === view.selected),
      'aria-expanded': branches ? String(!n.folded) : null,
      class: ['node', n.tier, own && 'own', n.running && 'running', n.id === view.selected && 'selected', faded && 'faded',
        view.found.has(n) && 'hit', seen && !seen.has(n.id) && 'fresh', at && 'path'].filter(Boolean).join(' ')},
    images.slice(0, 2).map(src => el('img', {src, alt: '', draggable: 'false'})), images.length > 2 && el('small', null, `+${images.length - 2}`),
    !images.length && n.images > 0 && icon('image'),
    el('span', null, own ? label(n) : ''), el('b', null, number(n.length)),
    branches && (n.folded || n.kids.length > 1) && el('i', {class: 'fold', 'aria-hidden': 'true'}, n.folded ? `+${number(count(n) - 1)}` : '–'));
  }

  /* Words of messages; of a chat's title where it ends; a tier. */
  function search() {
    const words = n => n.uses.map(u => `${n.kids.length ? '' : u.chat.title} ${u.parts.map(p => p.text).join(' ')}`).join(' ');
    view.found = new Set(view.query && tree ? tree.nodes.filter(n => `${words(n)} ${TIERS[n.tier]}`.toLowerCase().includes(view.query)) : []);
    for (let n of view.found) while ((n = n.up)) view.closed.delete(n.id);
  }

  function draw() {
    if (!tree) return;
    const focus = document.activeElement?.dataset?.id, had = bars.contains(document.activeElement);
    drawn = layout(tree, view);
    const path = new Set();
    for (let n = tree.byId.get(view.selected); n; n = n.up) path.add(n);
    wires.setAttribute('width', drawn.width);
    wires.setAttribute('height', drawn.height);
    const lines = [[], []];
    for (const n of drawn.rows) {
      if (!n.up) continue;
      const x = n.up.x + n.up.w, from = n.up.y + BAR / 2, to = n.y + BAR / 2, half = x + GAP / 2, r = Math.min(8, (to - from) / 2);
      lines[path.has(n) ? 1 : 0].push(to === from ? `M${x} ${from}H${n.x}`
        : `M${x} ${from}H${half - r}Q${half} ${from} ${half} ${from + r}V${to - r}Q${half} ${to} ${half + r} ${to}H${n.x}`);
    }
    wires.replaceChildren(...lines.map((d, i) => {
      const line = document.createElementNS('http://www.w3.org/2000/svg', 'path');
      line.setAttribute('d', d.join(''));
      if (i) line.setAttribute('class', 'path');
      return line;
    }));
    bars.replaceChildren(...drawn.rows.map(n => {
      const e = bar(n, path.has(n));
      e.style.left = `${n.x}px`;
      e.style.top = `${n.y}px`;
      e.style.width = `${n.w}px`;
      return e;
    }));
    bars.hidden = !drawn.rows.length;
    const at = items().find(e => e.dataset.id === focus) || items().find(e => Number(e.dataset.id) === view.selected) || items()[0];
    if (at) at.tabIndex = 0;
    if (had) at?.focus({preventScroll: true});
    if (!touched && !view.selected) home();
    else move({});
  }

  const rowOf = e => drawn.rows.find(n => String(n.id) === e?.dataset?.id);
  function select(id, show) {
    view.selected = id;
    for (let n = tree?.byId.get(id)?.up; n; n = n.up) view.closed.delete(n.id);
    draw();
    const n = drawn.rows.find(k => k.id === id);
    if (n && show) { touched = true; reveal(n); }
    onSelect(tree?.byId.get(id) || null);
  }
  function fold(n, open = n.folded) {
    touched = true;
    if (n.stub || n.stubbed) {
      const id = n.stub ? n.up?.id ?? 0 : n.id, kids = n.stub && !n.up ? tree.tops : tree.byId.get(id).kids;
      view.opened.set(id, Math.max(view.opened.get(id) || 0, kids.indexOf((n.hidden || kids)[0])) + MORE);
    } else if (open) view.closed.delete(n.id);
    else view.closed.add(n.id);
    draw();
  }
  function focus(n) {
    const e = n && items().find(k => k.dataset.id === String(n.id));
    if (!e) return;
    items().forEach(k => { k.tabIndex = -1; });
    e.tabIndex = 0;
    e.focus({preventScroll: true});
    touched = true;
    reveal(n);
  }

  node.addEventListener('click', e => {
    const n = rowOf(e.target.closest('.node'));
    if (!n || dragged) return;
    if (n.stub || e.target.closest('.fold')) fold(n);
    else select(n.id);
    focus(drawn.rows.find(k => k.id === n.id));
  });
  node.addEventListener('keydown', e => {
    const n = rowOf(e.target.closest('.node')), at = drawn.rows.indexOf(n);
    if (!n || e.ctrlKey || e.metaKey || e.altKey) return;
    const to = {ArrowDown: drawn.rows[at + 1], ArrowUp: drawn.rows[at - 1], Home: drawn.rows[0], End: drawn.rows.at(-1)};
    if (e.key in to) focus(to[e.key]);
    else if (e.key === 'ArrowRight') n.folded || n.stub ? fold(n, true) : focus(drawn.rows[at + 1]?.up === n && drawn.rows[at + 1]);
    else if (e.key === 'ArrowLeft') !n.stub && !n.folded && n.kids.length ? fold(n, false) : focus(n.up);
    else if (e.key === 'Enter' || e.key === ' ') n.stub ? fold(n) : select(n.id);
    else if (e.key === '+' || e.key === '=') zoom(1.25);
    else if (e.key === '-') zoom(.8);
    else if (e.key === '0') fit();
    else return;
    e.preventDefault();
  });

  /* One pointer drags, two zoom; the wheel scrolls, with Ctrl it zooms. */
  const pointers = new Map();
  let dragged = false;
  const middle = () => { const [a, b] = [...pointers.values()]; return {x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, d: Math.hypot(a.x - b.x, a.y - b.y)}; };
  node.addEventListener('pointerdown', e => {
    pointers.set(e.pointerId, {x: e.clientX, y: e.clientY});
    if (pointers.size === 1) dragged = false;
  });
  addEventListener('pointermove', e => {
    const p = pointers.get(e.pointerId);
    if (!p) return;
    const before = pointers.size === 2 && middle(), dx = e.clientX - p.x, dy = e.clientY - p.y;
    if (!dragged && pointers.size === 1 && Math.hypot(dx, dy) < 4) return;
    dragged = touched = true;
    Object.assign(p, {x: e.clientX, y: e.clientY});
    if (!before) return move({x: pose.x + dx, y: pose.y + dy});
    const now = middle(), box = node.getBoundingClientRect();
    zoom(now.d / Math.max(1, before.d), now.x - box.left, now.y - box.top);
    move({x: pose.x + now.x - before.x, y: pose.y + now.y - before.y});
  });
  const up = e => pointers.delete(e.pointerId);
  addEventListener('pointerup', up);
  addEventListener('pointercancel', up);
  node.addEventListener('wheel', e => {
    e.preventDefault();
    touched = true;
    const box = node.getBoundingClientRect();
    if (e.ctrlKey) zoom(Math.exp(-e.deltaY / 200), e.clientX - box.left, e.clientY - box.top);
    else move({x: pose.x - (e.shiftKey ? e.deltaY : e.deltaX), y: pose.y - (e.shiftKey ? 0 : e.deltaY)});
  }, {passive: false});
  node.addEventListener('scroll', () => { node.scrollTop = node.scrollLeft = 0; });

  return {
    node, zoom, fit, select, view,
    set(next) {
      tree = next;
      search();
      draw();
      seen = new Set(tree.nodes.map(n => n.id));
    },
    /* -> the nodes whose text contains the query; they are shown. */
    find(query) {
      view.query = query.trim().toLowerCase();
      search();
      draw();
      return drawn.rows.filter(n => view.found.has(n));
    },
    foldAll(open) {
      touched = false;
      view.closed.clear();
      view.opened.clear();
      view.all = open;
      if (!open) for (const n of tree?.nodes || []) if (n.kids.length > 1) view.closed.add(n.id);
      draw();
    },
    resize() { if (tree) move({}); },
  };
}
