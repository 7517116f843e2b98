/* Which nodes of the cache belong to which messages of this browser's chats: the server is asked where the
 * prompt of each branch of a chat lies (POST cache_tree); only it knows the tokens. */

const ASKED_MAX = 60; /* branches, the latest first */
const KEPT = ['messages', 'tools', 'documents', 'chat_template_kwargs', 'mm_processor_kwargs', 'cache_salt', 'model',
  'reasoning_effort', 'enable_thinking', 'thinking', 'reasoning'];

/* The responses that no further response of their chat continues. */
function branches(chat) {
  const answers = Object.values(chat.messages).filter(m => m.role === 'assistant' && m.request && (m.content || m.tool_calls?.length));
  const continued = new Set();
  for (const m of answers)
    for (let up = chat.messages[m.parent]; up; up = chat.messages[up.parent]) continued.add(up.id);
  return answers.filter(m => !continued.has(m.id));
}

/* The messages up to this one that were sent: not a response that failed, nor its question. */
function chain(chat, message) {
  const out = [];
  for (let m = message; m; m = chat.messages[m.parent]) {
    if (m.role !== 'assistant' || m.content || m.tool_calls?.length) out.unshift(m);
    else if (chat.messages[m.parent]?.role === 'user') m = chat.messages[m.parent];
  }
  return out;
}

function body(message) {
  const out = Object.fromEntries(KEPT.filter(k => message.request[k] !== undefined).map(k => [k, message.request[k]]));
  const answer = {role: 'assistant', content: message.content || ''};
  if (message.tool_calls?.length) answer.tool_calls = message.tool_calls;
  if (message.reasoning) answer.reasoning_content = message.reasoning;
  return {...out, messages: [...out.messages, answer], add_generation_prompt: false};
}

const text = content => (typeof content === 'string' ? content
  : (content || []).filter(p => p.type === 'text').map(p => p.text).join(' '));

/* What the tokens from `from` to `to` of a prompt are, from the server's list of places. */
function parts(answer, sent, messages) {
  const before = sent.length - messages.length; /* a system prompt is no message of the chat */
  return answer.places.map((p, i) => {
    const from = p.token, to = answer.places[i + 1]?.token ?? answer.prompt_tokens;
    if (p.message == null || !['text', 'image', 'video', 'field'].includes(p.kind))
      return ['tools', 'documents'].includes(p.kind) ? {from, to, role: p.kind, text: '', kind: p.kind} : null;
    const source = sent[p.message], part = p.part != null && Array.isArray(source.content) ? source.content[p.part] : null;
    if (p.kind === 'field' && p.field === 'role') return null;
    return {from, to, kind: p.kind, role: p.role, message: messages[p.message - before]?.id || null,
      image: part?.image_url?.url || null,
      text: p.kind === 'image' ? '' : part ? part.text || '' : p.kind === 'field' ? p.field : text(source.content)};
  }).filter(Boolean);
}

export function createMap({api, conversations}) {
  const known = new Map(); /* message id -> {state, chat, title, leaf: node id, parts} */
  let busy = false;

  async function learn(b, alive) {
    const answer = await api.request('cache_tree', {body: body(b.message)});
    if (!alive()) return;
    known.set(b.message.id, {...b, nodes: answer.nodes, equal: answer.equal_tokens, parts: parts(answer, body(b.message).messages, chain(b.chat, b.message))});
  }

  /* Asks about what is new, or was on nodes that are gone; -> whether anything was learnt. */
  async function refresh(tree, alive) {
    if (busy) return false;
    busy = true;
    let learnt = false;
    try {
      const list = (await conversations()).flatMap(chat => branches(chat).map(message =>
        ({chat, message, state: `${message.content?.length}/${chat.title}`})))
        .sort((a, b) => b.message.created - a.message.created).slice(0, ASKED_MAX);
      const ids = new Set(list.map(b => b.message.id));
      for (const id of known.keys()) if (!ids.has(id)) learnt = known.delete(id);
      for (const b of list) {
        const old = known.get(b.message.id);
        const whole = old?.nodes.length && tree.byId.has(old.nodes.at(-1));
        if (!alive() || (old?.state === b.state && (whole || old.seen === tree.version))) continue;
        try { await learn(b, alive); } catch { known.set(b.message.id, {...b, nodes: [], parts: []}); }
        if (known.has(b.message.id)) known.get(b.message.id).seen = tree.version;
        learnt = true;
      }
    } finally {
      busy = false;
    }
    return learnt;
  }

  /* Gives each node of the tree its `uses`: [{chat, message, parts}], of the latest chat first. */
  function apply(tree) {
    for (const n of tree.nodes) n.uses = [];
    for (const b of known.values()) {
      const leaf = [...b.nodes].reverse().map(id => tree.byId.get(id)).find(Boolean);
      for (let n = leaf; n; n = n.up) {
        const own = b.parts.filter(p => p.to > n.start && p.from < n.end && p.from < b.equal);
        n.uses.push({chat: b.chat, tip: b.message, parts: own});
      }
    }
    for (const n of tree.nodes) n.uses.sort((a, b) => b.tip.created - a.tip.created);
  }

  return {refresh, apply};
}
