/* Elements, icons, and what appears over the page. Strings are always text: nothing is ever read as HTML. */

/* Functions are listeners; null and false are left out, among attributes and children. */
export function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (typeof v === 'function') e.addEventListener(k, v);
    else if (v != null && v !== false) e.setAttribute(k, v === true ? '' : v);
  }
  e.append(...children.flat().filter(c => c != null && c !== false));
  return e;
}

/* Text to nodes. A long one is cut at ends of lines, so that only what is seen of it is laid out. */
export const textNodes = text => (text.length < 20000 ? [text]
  : text.match(/[^]{1,4000}$|[^]{0,4000}\n|[^]{1,4000}/g).map(part => el('div', {class: 'cut'}, part)));

const dot = (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
const icons = {
  send: 'M12 19V5M6 11l6-6 6 6', stop: 'M7 7h10v10H7z', plus: 'M12 5v14M5 12h14',
  close: 'M6 6l12 12M18 6L6 18', check: 'M5 13l4 4L19 7', chevron: 'M9 6l6 6-6 6',
  more: dot(6, 12, .6) + dot(12, 12, .6) + dot(18, 12, .6),
  copy: 'M9 9h11v11H9zM6 15H4V4h11v2', edit: 'M4 20h4L19.5 8.5l-4-4L4 16zM13 7l4 4',
  retry: 'M20 12a8 8 0 1 1-2.4-5.7M20 3v5h-5', trash: 'M4 7h16M9 7V4h6v3M6.5 7l1 13h9l1-13M10.5 11v5.5M13.5 11v5.5',
  branch: `${dot(6, 5, 2)}${dot(6, 19, 2)}${dot(18, 8, 2)}M6 7v10M18 10c0 4-4 4.5-8 4.5-2 0-4 1-4 2.5`,
  search: `${dot(11, 11, 6)}M20 20l-4.7-4.7`, info: `${dot(12, 12, 8.5)}M12 11v5.5M12 7.6v.2`,
  settings: `M4 7h9M19 7h1M4 17h1M11 17h9${dot(16, 7, 2.6)}${dot(8, 17, 2.6)}`,
  sun: `${dot(12, 12, 4)}M12 2.5V5M12 19v2.5M2.5 12H5M19 12h2.5M5.3 5.3L7 7M17 17l1.7 1.7M5.3 18.7L7 17M17 7l1.7-1.7`,
  moon: 'M20 14.3A8.2 8.2 0 1 1 9.7 4a6.6 6.6 0 0 0 10.3 10.3z', auto: `${dot(12, 12, 8.5)}M12 3.5v17M15 5v14M18 7.5v9`,
  image: `M4 5h16v14H4zM4 17l5-5 4 4 3-3 4 4${dot(9, 9, 1.3)}`, file: 'M6 3h8l4 4v14H6zM14 3v4h4M9 12.5h6M9 16.5h6',
  camera: `M4 8h3.5L9 5h6l1.5 3H20v11H4z${dot(12, 13, 3.4)}`,
  cache: `${dot(5, 12, 2)}${dot(19, 5, 2)}${dot(19, 12, 2)}${dot(19, 19, 2)}M7 12h10M9 12c4 0 3-7 8-7M9 12c4 0 3 7 8 7`,
  proof: `${dot(12, 12, 8.5)}M8.5 10h7M8.5 14h7`, chat: 'M4 5h16v11h-9l-4 4v-4H4z',
  tools: 'M20.3 7.2a5 5 0 0 1-6.6 5.6l-6.3 6.3a1.8 1.8 0 0 1-2.5-2.5l6.3-6.3A5 5 0 0 1 16.8 3.7L13.9 6.6l.7 2.8 2.8.7z',
  brain: 'M9.5 18h5M10.5 21h3M9.5 18c0-2-3.5-3.5-3.5-8a6 6 0 0 1 12 0c0 4.5-3.5 6-3.5 8',
  download: 'M12 4v11M7 10.5l5 5 5-5M5 20h14', upload: 'M12 16V4.5M7 9.5l5-5 5 5M5 20h14',
  key: `${dot(8, 15, 4)}M11 12l8-8M16 7l3 3`, sidebar: 'M4 5h16v14H4zM9.5 5v14',
  kvasir: 'M7.5 4v16M7.5 14h3.5L18 6M11.8 13.2L18 20',
};

export function icon(name) {
  const make = tag => document.createElementNS('http://www.w3.org/2000/svg', tag);
  const svg = make('svg'), path = make('path');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('class', `icon icon-${name}`);
  svg.setAttribute('aria-hidden', 'true');
  path.setAttribute('d', icons[name] || '');
  svg.append(path);
  return svg;
}

/* A button that shows an icon; its label is a tooltip, too. */
export const iconButton = (name, label, click, attributes) =>
  el('button', {type: 'button', class: 'icon-button', title: label, 'aria-label': label, click, ...attributes}, icon(name));

let toasts;
/* For some seconds; with an action, its button. */
export function toast(text, action) {
  if (!toasts) document.body.append(toasts = el('div', {class: 'toasts', role: 'status', 'aria-live': 'polite'}));
  const close = () => node.remove();
  const node = el('div', {class: 'toast'}, el('span', null, text),
    action && el('button', {type: 'button', click: () => { close(); action.run(); }}, action.label),
    iconButton('close', 'Dismiss', close));
  (document.querySelector('dialog[open]') || document.body).append(toasts);
  toasts.append(node);
  setTimeout(close, action ? 10000 : 6000);
}

/* Opens a dialog; -> its element. A button: {label, primary, danger, run}; it closes the dialog, unless `run`
 * returns false. */
export function dialog(title, body, buttons = [], kind = '') {
  const node = el('dialog', {class: `dialog ${kind}`, 'aria-label': title, close: () => node.remove(),
    click: e => { if (e.target === node) node.close(); }},
  el('div', {class: 'dialog-body'},
    el('header', null, el('h2', null, title), iconButton('close', 'Close', () => node.close())),
    el('div', {class: 'dialog-content'}, body),
    buttons.length > 0 && el('footer', null, buttons.map(b => el('button', {type: 'button',
      class: b.primary ? 'primary' : b.danger ? 'danger' : null, click: () => {
        if (b.run?.() !== false) node.close();
      }}, b.label)))));
  document.body.append(node);
  node.showModal();
  return node;
}

/* A menu under a button. An item: {label, icon, danger, run}. */
export function menu(button, items) {
  const close = focus => {
    node.remove();
    button.setAttribute('aria-expanded', 'false');
    document.removeEventListener('pointerdown', outside, true);
    if (focus) button.focus();
  };
  const outside = e => { if (!node.contains(e.target)) close(false); };
  const node = el('div', {class: 'menu', role: 'menu', keydown: e => {
    const all = [...node.children], at = all.indexOf(document.activeElement);
    const to = {ArrowDown: (at + 1) % all.length, ArrowUp: (at + all.length - 1) % all.length, Home: 0,
      End: all.length - 1}[e.key];
    if (to != null) all[to].focus();
    else if (e.key === 'Escape' || e.key === 'Tab') close(true);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }}, items.map(i => el('button', {type: 'button', role: 'menuitem', class: i.danger ? 'danger' : null,
    click: () => { close(true); i.run(); }}, icon(i.icon), i.label)));
  document.body.append(node);
  const at = button.getBoundingClientRect();
  node.style.left = `${Math.max(8, Math.min(at.left, innerWidth - node.offsetWidth - 8))}px`;
  node.style.top = `${at.bottom + node.offsetHeight + 8 > innerHeight ? at.top - node.offsetHeight - 4 : at.bottom + 4}px`;
  button.setAttribute('aria-expanded', 'true');
  document.addEventListener('pointerdown', outside, true);
  node.firstChild.focus();
}

/* Has the browser save a file. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  el('a', {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/* Lets a person choose a file; -> its text, or null. */
export const chooseText = accept => new Promise(done => {
  const input = el('input', {type: 'file', accept, change: () => done(input.files[0]?.text() ?? null),
    cancel: () => done(null)});
  input.click();
});
