import {el} from './dom.js';

export function createComposer(node, {onSend, onStop}) {
  const field = el('textarea', {'aria-label': 'Message', placeholder: 'Message', keydown: e => {
    if (e.key !== 'Enter' || e.shiftKey) return;
    e.preventDefault();
    onSend({text: field.value.trim(), attachments: []});
  }});
  const button = el('button', {type: 'button', click: () => (busy ? onStop() : onSend({text: field.value.trim(), attachments: []}))}, 'Send');
  let busy = false;
  node.replaceChildren(el('form', {class: 'composer'}, field, button));
  return {set: d => { field.value = d?.text || ''; }, clear: () => { field.value = ''; },
    busy: yes => { busy = yes; button.textContent = yes ? 'Stop' : 'Send'; }, focus: () => field.focus(), addFiles() {}};
}
