/* Messages as nodes. */
import {el} from './dom.js';

export function renderAnswer(node, message) {
  node.replaceChildren(el('div', {class: 'markdown'}, message.content));
}

export function renderUser(node, message) {
  node.replaceChildren(...(message.attachments || []).map(a => el('img', {src: a.data, alt: a.name, height: 96})),
    el('div', {class: 'said'}, message.content));
}

export function toolResultForm(call, onResult) {
  const field = el('textarea');
  return el('form', {submit: e => { e.preventDefault(); onResult(field.value); }}, field, el('button', null, 'Send result'));
}
