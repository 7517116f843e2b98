/* The list of conversations: search, rename, delete, files. */
import * as store from './store.js';
import {el, icon, iconButton, menu, toast, dialog, download, chooseText} from './dom.js';

const DAY = 86400000;
function when(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  return time >= midnight ? 'Today' : time >= midnight - DAY ? 'Yesterday' : time >= midnight - 6 * DAY ? 'Last 7 days'
    : 'Older';
}
const fileName = (title, ending) => `${title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 50) || 'chat'}.${ending}`;

export function createConversations(node, {chat, onOpen}) {
  const list = el('div', {class: 'conversations', role: 'region', 'aria-label': 'Conversations', tabindex: 0});
  const kept = el('span');
  let turn = 0;
  const search = el('input', {type: 'search', placeholder: 'Search', 'aria-label': 'Search conversations', input: () => draw()});
  const files = iconButton('more', 'Import and export', () => menu(files, [
    {label: 'Import', icon: 'upload', run: importFile}, {label: 'Export all', icon: 'download', run: exportAll},
    {label: 'Delete all', icon: 'trash', danger: true, run: removeAll}]), {'aria-haspopup': 'menu', 'aria-expanded': 'false'});
  node.append(el('div', {class: 'search'}, icon('search'), search), list,
    el('div', {class: 'side-foot'}, kept, files));
  store.lasting().then(yes => { kept.textContent = yes ? 'Kept in this browser' : 'Kept until this tab is closed'; });
  store.onOthers(id => { chat.changed(id); draw(); });

  async function draw() {
    const mine = ++turn, text = search.value.trim();
    const all = text ? await store.search(text) : await store.listConversations();
    if (mine !== turn || list.querySelector('input')) return; /* a later one draws, or the end of renaming */
    const at = list.contains(document.activeElement) && document.activeElement, row = at && at.closest('li');
    const groups = Map.groupBy(all, c => (text ? 'Found' : when(c.updated)));
    list.replaceChildren(...[...groups].map(([name, some]) => el('section', null, el('h2', null, name),
      el('ul', null, some.map(item)))));
    if (row) list.querySelector(`[data-id="${row.dataset.id}"] ${at.matches('a') ? 'a' : 'button'}`)?.focus();
    if (!all.length) list.append(el('p', {class: 'hint'}, text ? 'Nothing found.' : 'Conversations will be listed here.'));
  }

  function item(c) {
    const open = el('a', {href: `#${c.id}`, 'aria-current': c.id === chat.current().id ? 'true' : null, click: onOpen},
      el('span', {class: 'title'}, c.title || 'Chat'), c.found && el('span', {class: 'found'}, c.found));
    const more = iconButton('more', `More about ${c.title}`, () => menu(more, [
      {label: 'Rename', icon: 'edit', run: () => rename(c, row)},
      {label: 'Export as JSON', icon: 'download',
        run: async () => download(fileName(c.title, 'json'), await store.exportJSON([c.id]), 'application/json')},
      {label: 'Export as Markdown', icon: 'file',
        run: async () => download(fileName(c.title, 'md'), await store.exportMarkdown(c.id), 'text/markdown')},
      {label: 'Delete', icon: 'trash', danger: true, run: () => remove(c)},
    ]), {'aria-haspopup': 'menu', 'aria-expanded': 'false'});
    const row = el('li', {class: chat.running(c.id) ? 'running' : null, 'data-id': c.id}, open, more);
    return row;
  }

  function rename(c, row) {
    const field = el('input', {value: c.title, 'aria-label': 'Title', maxlength: 120, keydown: e => {
      if (e.key !== 'Enter' && e.key !== 'Escape') return;
      e.preventDefault();
      done(e.key === 'Enter');
    }, blur: () => done(true)});
    let ended = false;
    const done = async keep => {
      if (ended) return;
      ended = true;
      const title = field.value.trim();
      if (keep && title && title !== c.title) {
        chat.renamed(c.id, title);
        await store.put({...await store.get(c.id), title});
      }
      const focused = document.activeElement === field;
      field.remove();
      await draw();
      if (focused) list.querySelector(`[data-id="${c.id}"] button`)?.focus();
    };
    row.replaceChildren(field);
    field.focus();
    field.select();
  }

  async function remove(c) {
    const whole = await store.get(c.id);
    chat.removed(c.id);
    await store.remove(c.id);
    if (chat.current().id === c.id) location.hash = '';
    draw();
    toast(`“${c.title}” is deleted.`, {label: 'Undo', run: async () => {
      await store.put(whole);
      draw();
    }});
  }

  async function importFile() {
    const text = await chooseText('.json,.md,application/json,text/markdown');
    if (text === null) return;
    try {
      const ids = await store.importText(text);
      toast(`${ids.length === 1 ? '1 conversation is' : `${ids.length} conversations are`} imported.`);
      location.hash = ids[0];
    } catch (error) {
      toast(error.message);
    }
    draw();
  }

  async function exportAll() {
    const ids = (await store.listConversations()).map(c => c.id);
    download('kvasir-conversations.json', await store.exportJSON(ids), 'application/json');
  }

  const removeAll = () => dialog('Delete all conversations?', el('p', null, 'They are kept in this browser alone and cannot be ',
    'restored.'), [{label: 'Cancel'}, {label: 'Delete all', danger: true, run: async () => {
    for (const {id} of await store.listConversations()) {
      chat.removed(id);
      await store.remove(id);
    }
    location.hash = '';
    chat.open(null);
    draw();
  }}]);

  draw();
  return {draw, search};
}
