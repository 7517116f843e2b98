/* The page: its parts, and which of them is shown. The address's #ID is a conversation, #cache the cache. */
import * as api from './api.js';
import * as store from './store.js';
import {el, icon, toast} from './dom.js';
import {createChat, withRequest} from './chat.js';
import {createConversations} from './conversations.js';
import {createSettings} from './settings.js';
import {mountCache} from './cache.js';

const $ = id => document.getElementById(id);
const narrow = matchMedia('(max-width: 52rem)');

for (const node of document.querySelectorAll('[data-icon]')) node.prepend(icon(node.dataset.icon));

let list = null, connecting = 0;
const settings = createSettings({onKey: connect});
const chat = createChat($('chat-view'), {settings, model: () => $('model').value, onChange: () => list.draw()});
list = createConversations($('list'), {chat, onOpen: () => narrow.matches && side(false)});
const cache = mountCache($('cache-view'), {api,
  conversations: async () => {
    const all = await Promise.all((await store.listConversations()).map(c => store.get(c.id)));
    for (const c of all) for (const m of Object.values(c.messages)) withRequest(c, m);
    return all;
  },
  openMessage: (id, message) => {
    wanted = message;
    if (location.hash === `#${id}`) show();
    else location.hash = id;
  }});

/* ---- the address ---- */

let wanted = null; /* a message to go to */
async function show() {
  const id = location.hash.slice(1), onCache = id === 'cache';
  $('chat-view').hidden = onCache;
  $('cache-view').hidden = !onCache;
  for (const [tab, on] of [['tab-chat', !onCache], ['tab-cache', onCache]])
    $(tab).setAttribute('aria-current', on ? 'page' : 'false');
  if (onCache) {
    document.title = 'Cache – Kvasir';
    return cache.show();
  }
  cache.hide();
  if (chat.current().id !== id || wanted) await chat.open(id, wanted);
  wanted = null;
  $('tab-chat').href = `#${chat.current().head ? chat.current().id : ''}`;
  list.draw();
}
addEventListener('hashchange', show);

/* A first message gives a conversation its address. */
const changed = () => {
  const c = chat.current();
  if (c.head && location.hash !== `#${c.id}` && location.hash !== '#cache') history.replaceState(null, '', `#${c.id}`);
  $('tab-chat').href = `#${c.head ? c.id : ''}`;
};
new MutationObserver(changed).observe($('chat-view').querySelector('.turns'), {childList: true});

/* ---- the list at the side ---- */

function side(open) {
  document.body.classList.toggle('side-open', open);
  document.body.classList.toggle('side-closed', !open);
  if (!narrow.matches) store.setting('side', open);
  $('side-button').setAttribute('aria-expanded', open);
  $('side').inert = !open;
  $('main').inert = open && narrow.matches; /* it lies below the list then */
}
const begin = () => side(!narrow.matches && store.setting('side') !== false);
narrow.addEventListener('change', begin);
begin();
$('side-button').addEventListener('click', () => side(true));
$('side-close').addEventListener('click', () => { side(false); $('side-button').focus(); });
$('shade').addEventListener('click', () => side(false));
document.addEventListener('keydown', e => {
  if (e.key === 'Escape' && narrow.matches && !$('side').inert) side(false);
  if (!(e.ctrlKey || e.metaKey) || e.altKey) return;
  if (e.key.toLowerCase() === 'k') {
    side(true);
    list.search.focus();
  } else if (e.shiftKey && e.key.toLowerCase() === 'o') newChat();
  else return;
  e.preventDefault();
});

/* What an icon does, where nothing can hover: by a long press. */
document.addEventListener('contextmenu', e => {
  const label = matchMedia('(hover: none)').matches && e.target.closest('button[aria-label]')?.ariaLabel;
  if (!label) return;
  e.preventDefault();
  toast(label);
});

async function newChat() {
  if (narrow.matches) side(false);
  if (location.hash && location.hash !== '#') location.hash = '';
  else await chat.open(null);
  chat.focus();
}
for (const id of ['new', 'new-small']) $(id).addEventListener('click', newChat);
$('settings').addEventListener('click', settings.open);

/* ---- the server ---- */

async function connect() {
  clearTimeout(connecting);
  try {
    const all = await api.models(), was = $('model').value || store.setting('model');
    $('model').replaceChildren(...all.map(m => {
      const off = m.status?.value === 'unloaded' && m.id !== was;
      return el('option', {value: m.id}, off ? `${m.id} (not loaded)` : m.id);
    }));
    if (all.some(m => m.id === was)) $('model').value = was;
    $('model-name').textContent = $('model').value;
    $('model').hidden = all.length < 2;
    $('model-name').hidden = all.length > 1;
    askKey(false);
    const p = await api.props(all.length > 1 ? $('model').value : '');
    const demo = /^demo\b/.test($('model').value) && all[0]?.meta?.n_params < 1e8;
    chat.model({vision: p.modalities?.vision !== false, chat: p.chat_template !== '', demo});
    settings.defaults(p.default_generation_settings);
    state('');
  } catch (error) {
    if (error.status === 401) return;
    state(error.status === 503 ? 'The model is loading …' : error.message);
    connecting = setTimeout(connect, 2000);
  }
}
function state(text) {
  $('state').textContent = text;
  $('state').hidden = !text;
}
$('model').addEventListener('change', () => {
  store.setting('model', $('model').value);
  connect();
});

/* It asks before it complains: only a key that was refused is called wrong. */
function askKey(yes) {
  const form = $('key-form');
  if (yes && form.hidden) {
    form.hidden = false;
    $('main').inert = $('side').inert = true;
    form.elements.key.focus();
  } else if (!yes && !form.hidden) {
    form.hidden = true;
    $('main').inert = false;
    begin();
    chat.focus();
  }
}
addEventListener('kvasir-key', () => {
  $('key-problem').textContent = api.key() ? 'The server does not accept this key.' : '';
  api.setKey('');
  askKey(true);
});
$('key-form').addEventListener('submit', e => {
  e.preventDefault();
  const {key, remember} = e.target.elements;
  $('key-problem').textContent = '';
  api.setKey(key.value.trim(), remember.checked);
  key.value = '';
  connect();
});

connect();
await show();
