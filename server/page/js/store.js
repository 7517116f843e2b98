/* What this browser keeps: conversations and drafts in IndexedDB, settings in localStorage. Where a browser
 * forbids that, both last until the tab is closed. */

const STORES = ['conversations', 'summaries', 'drafts'];
let database;
const memory = Object.fromEntries(STORES.map(s => [s, new Map()]));

export const open = () => (database ||= new Promise(done => {
  try {
    const asked = indexedDB.open('kvasir', 1);
    asked.onupgradeneeded = () => STORES.forEach(s => asked.result.createObjectStore(s));
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => done(null);
  } catch {
    done(null);
  }
}));

/* One transaction over `stores`: `work` gets its object stores, and returns a request, or nothing. */
async function run(stores, mode, work) {
  const db = await open();
  if (!db) return work(...stores.map(s => inMemory(memory[s])))?.result;
  return new Promise((done, failed) => {
    const t = db.transaction(stores, mode), asked = work(...stores.map(s => t.objectStore(s)));
    t.oncomplete = () => done(asked?.result);
    t.onerror = t.onabort = () => failed(t.error);
  });
}
const inMemory = map => ({get: k => ({result: map.get(k)}), getAll: () => ({result: [...map.values()]}),
  put: (v, k) => void map.set(k, structuredClone(v)), delete: k => void map.delete(k)});

const summary = ({id, title, created, updated}) => ({id, title, created, updated});

/* Newest first: {id, title, created, updated}. */
export async function listConversations() {
  return (await run(['summaries'], 'readonly', s => s.getAll())).sort((a, b) => b.updated - a.updated);
}

export const get = id => run(['conversations'], 'readonly', s => s.get(id));

/* Other tabs of this browser: onOthers(f) calls f(id) when one has changed a conversation. */
const others = new BroadcastChannel('kvasir');
export const onOthers = f => others.addEventListener('message', e => f(e.data));

export const complete = m => m && (m.role !== 'assistant' || m.finish_reason || m.error);

/* Takes over what another tab has added or completed. */
export function merge(c, there) {
  for (const [id, m] of Object.entries(there?.messages || {}))
    if (!c.messages[id] || (complete(m) && !complete(c.messages[id]))) c.messages[id] = m;
}

/* What another tab has put stays. `quiet`: the others are not told. */
export async function put(c, quiet) {
  await run(['conversations', 'summaries'], 'readwrite', (all, short) => {
    const here = all.get(c.id), write = () => {
      merge(c, here.result);
      all.put(c, c.id);
      short.put(summary(c), c.id);
    };
    if (here.readyState) here.onsuccess = write;
    else write();
  });
  if (!quiet) others.postMessage(c.id);
}

export async function remove(id) {
  await run(STORES, 'readwrite', (...stores) => stores.forEach(s => s.delete(id)));
  others.postMessage(id);
}

export const lasting = async () => Boolean(await open());

/* Those whose title or messages contain the text; each with the place in `found`. */
export async function search(text) {
  const wanted = text.toLowerCase(), out = [];
  for (const {id} of await listConversations()) {
    const c = await get(id);
    if (!c) continue;
    const places = Object.values(c.messages).map(m => m.content || '');
    const hit = places.find(p => p.toLowerCase().includes(wanted));
    if (hit === undefined && !c.title.toLowerCase().includes(wanted)) continue;
    const at = hit?.toLowerCase().indexOf(wanted) ?? 0;
    out.push({...summary(c), found: hit && `${at > 20 ? '…' : ''}${hit.slice(Math.max(0, at - 20), at + 60)}`});
  }
  return out;
}

/* A setting: JSON by its name; with a value, sets it (null: no longer). */
export function setting(name, value) {
  try {
    if (value === undefined) return JSON.parse(localStorage.getItem(`kvasir-${name}`));
    if (value === null) localStorage.removeItem(`kvasir-${name}`);
    else localStorage.setItem(`kvasir-${name}`, JSON.stringify(value));
  } catch { /* not kept */ }
  return value ?? null;
}

/* What is written and not sent yet: {text, attachments}. */
export const draft = (id, value) => (value === undefined ? run(['drafts'], 'readonly', s => s.get(id))
  : run(['drafts'], 'readwrite', s => void (value ? s.put(value, id) : s.delete(id))));

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), b => b.toString(36).padStart(2, '0')).join('');

/* ---- messages of a conversation: a tree by `parent`; `head` is the last one shown ---- */

/* From the first to `id`. */
export function path(c, id = c.head) {
  const out = [];
  for (let m = c.messages[id]; m; m = c.messages[m.parent]) out.unshift(m);
  return out;
}

/* Those after the same message, oldest first: versions and branches. */
export const siblings = (c, m) => Object.values(c.messages).filter(n => n.parent === m.parent)
  .sort((a, b) => a.created - b.created);

/* The newest end below `id`. */
export function leaf(c, id) {
  for (;;) {
    const next = Object.values(c.messages).filter(n => n.parent === id).sort((a, b) => a.created - b.created).at(-1);
    if (!next) return id;
    id = next.id;
  }
}

export const newConversation = () => ({id: newId(), title: '', created: Date.now(), updated: Date.now(), messages: {},
  root: null, head: null});

/* ---- files ---- */

const FORMAT = 'kvasir-conversations';

export async function exportJSON(ids) {
  return JSON.stringify({format: FORMAT, version: 1, conversations: (await Promise.all(ids.map(get))).filter(Boolean)},
    null, 1);
}

export const speaker = m => ({user: 'You', tool: 'Tool result', system: 'System'}[m.role] || m.model || 'Assistant');

/* The messages that are shown, each below a comment that importing looks for. */
export async function exportMarkdown(id) {
  const c = await get(id);
  const parts = path(c).map(m => [`<!-- kvasir: ${m.role} -->`, `## ${speaker(m)}`, '',
    ...(m.attachments || []).map(a => (a.kind === 'image' ? `![${a.name.replace(/[[\]\\]/g, '')}](${a.data})\n`
      : `\`\`\`\`text ${a.name}\n${a.data}\n\`\`\`\`\n`)), m.content, ''].join('\n'));
  return [`# ${c.title}`, '', ...parts].join('\n');
}

function fromMarkdown(text) {
  const [head, ...parts] = text.split(/^<!-- kvasir: (user|assistant|tool|system) -->\n## (.*)\n/m);
  const c = {...newConversation(), title: /^# (.*)/.exec(head)?.[1] || ''};
  for (let i = 0; i + 2 < parts.length; i += 3) {
    const [role, who, body] = parts.slice(i, i + 3), attachments = [];
    const keep = kind => (_, name, data) => (attachments.push({id: newId(), kind, name, data}), '');
    const content = role !== 'user' ? body : body.replace(/^!\[(.*)\]\((data:image\/[^)\s]*)\)$/gm, keep('image'))
      .replace(/^````text (.*)\n([^]*?)\n````$/gm, keep('text'));
    const m = {id: newId(), parent: c.head, role, created: Date.now() + i, content: content.trim(), attachments};
    if (role === 'assistant') m.model = who;
    c.messages[c.head = m.id] = m;
    c.root ||= m.id;
  }
  return [c];
}

const text = v => (typeof v === 'string' ? v : '');
const list = v => (Array.isArray(v) ? v : []).filter(i => i && typeof i === 'object');
const record = v => (v && typeof v === 'object' && !Array.isArray(v) ? v : undefined);

/* What an answer has besides its text. */
function checkedAnswer(m) {
  const calls = list(m.tool_calls).map(({id, function: f}) => ({id: text(id), type: 'function',
    function: {name: text(f?.name), arguments: text(f?.arguments)}}));
  const tokens = v => list(v).filter(t => typeof t.token === 'string' && Number.isFinite(t.logprob));
  const out = {tool_calls: calls.length ? calls : undefined, ttft_ms: Number(m.ttft_ms) || undefined,
    logprobs: tokens(m.logprobs).map(t => ({...t, top_logprobs: tokens(t.top_logprobs)}))};
  for (const k of ['params', 'usage', 'timings', 'cache_info']) out[k] = record(m[k]);
  for (const k of ['model', 'system', 'reasoning', 'finish_reason', 'error']) out[k] = text(m[k]) || undefined;
  return out;
}

/* A conversation of a file, with nothing but what this page writes; null if it is none. */
function checked(c) {
  if (typeof c?.id !== 'string' || typeof c.messages !== 'object' || !c.messages) return null;
  const messages = {};
  for (const [id, m] of Object.entries(c.messages)) {
    if (!['user', 'assistant', 'tool', 'system'].includes(m?.role) || id in messages) return null;
    messages[id] = {id, role: m.role, parent: m.parent ?? null, created: Number(m.created) || 0, content: text(m.content),
      ...m.role === 'assistant' && checkedAnswer(m), ...m.role === 'tool' && {tool_call_id: text(m.tool_call_id)},
      attachments: list(m.attachments).filter(a => typeof a.data === 'string' &&
        (a.kind === 'text' || (a.kind === 'image' && a.data.startsWith('data:image/'))))
        .map(a => ({...a, name: text(a.name)}))};
  }
  for (const m of Object.values(messages)) { /* each leads to a first one */
    const seen = new Set();
    for (let n = m; n.parent !== null; n = messages[n.parent])
      if (seen.has(n.id) || !messages[n.parent] || !seen.add(n.id)) return null;
  }
  const first = Object.values(messages).find(m => m.parent === null);
  const now = Date.now();
  return {id: /^\w{9,}$/.test(c.id) ? c.id : newId(), title: text(c.title).slice(0, 120), created: Number(c.created) || now,
    updated: Math.min(Number(c.updated) || now, now),
    messages, root: first?.id ?? null, head: messages[c.head] ? c.head : first ? leaf({messages}, first.id) : null};
}

/* Adds the conversations of an exported file, JSON or Markdown; -> their ids. One that is here already comes as
 * a copy, unless it is the same. */
export async function importText(file) {
  let all;
  try {
    all = /^\s*[{[]/.test(file) ? JSON.parse(file).conversations?.map(checked) : fromMarkdown(file).map(checked);
  } catch { /* said below */ }
  if (!Array.isArray(all) || !all.length || !all.every(c => c?.head))
    throw new Error('This is not a file of conversations that this page has exported (JSON or Markdown).');
  for (const c of all) {
    const here = await get(c.id);
    if (here && here.updated !== c.updated) c.id = newId();
    await put(c);
  }
  return all.map(c => c.id);
}
