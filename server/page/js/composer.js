/* Where a message is written: text, attachments by paste, drop, file and camera, a draft that is kept. */
import {el, icon, toast} from './dom.js';
import {readFiles, zoom, showText} from './attachments.js';

const ACCEPTED = 'image/*,application/pdf,text/*,.md,.json,.csv,.tsv,.xml,.yaml,.yml,.toml,.ini,.log,.tex,.py,.js,' +
  '.ts,.c,.h,.cc,.cpp,.cu,.rs,.go,.java,.sh,.sql';
const coarse = matchMedia('(pointer: coarse)');

export function createComposer(node, {onSend, onStop, onDraft}) {
  let attachments = [], running = false, vision = true, reading = 0, saving = 0;

  const list = el('ul', {class: 'attachments', 'aria-label': 'To send'});
  const field = el('textarea', {rows: 1, 'aria-label': 'Message', placeholder: 'Message',
    'aria-describedby': 'composer-hint', input: () => changed(), blur: () => keep(), keydown: e => {
      if (e.key !== 'Enter' || e.shiftKey || e.isComposing || coarse.matches) return;
      e.preventDefault();
      send();
    }});
  const chooser = attributes => {
    const input = el('input', {type: 'file', hidden: true, ...attributes, change: async () => {
      const files = [...input.files];
      input.value = '';
      await add(files);
      focus();
    }});
    return input;
  };
  const files = chooser({multiple: true, accept: ACCEPTED, class: 'files'});
  const camera = chooser({accept: 'image/*', capture: 'environment', class: 'camera'});
  const pick = (symbol, label, input, kind, word) => el('button', {type: 'button', class: `pick ${kind}`, title: label, 'data-word': word,
    'aria-label': label, click: () => input.click()}, icon(symbol));
  const status = el('span', {class: 'hint', id: 'composer-hint', role: 'status'});
  const button = el('button', {type: 'submit', class: 'send'}, icon('send'));
  const form = el('form', {class: 'composer', submit: e => {
    e.preventDefault();
    running ? onStop() : send();
  }}, list, field, el('div', {class: 'row'}, pick('image', 'Add images, PDF or text files', files, 'file', 'Files'),
    pick('camera', 'Take a photo', camera, 'photo', 'Photo'), files, camera, status, button));
  const overlay = el('div', {class: 'drop-overlay', hidden: true, 'aria-hidden': 'true'},
    el('div', null, icon('upload'), el('strong', null, 'Drop to add'), el('span', null, 'images, PDF or text files')));
  node.replaceChildren(form);
  document.body.append(overlay);

  function send() {
    const text = field.value.trim();
    if (running || reading || (!text && !attachments.length)) return;
    onSend({text, attachments});
  }

  function changed() {
    field.style.height = 'auto';
    field.style.height = `${field.scrollHeight}px`;
    button.disabled = !running && (reading > 0 || (!field.value.trim() && !attachments.length));
    button.title = running ? 'Stop' : 'Send';
    button.setAttribute('aria-label', button.title);
    status.textContent = reading ? 'Reading files …' : coarse.matches ? '' : running ? 'Escape stops' : 'Enter sends, Shift+Enter adds a line';
    clearTimeout(saving);
    saving = setTimeout(keep, 300);
  }

  function keep() {
    clearTimeout(saving);
    if (saving) onDraft?.({text: field.value, attachments});
    saving = 0;
  }

  function draw() {
    const images = attachments.filter(a => a.kind === 'image');
    list.hidden = !attachments.length;
    list.replaceChildren(...attachments.map(a => el('li', null,
      el('button', {type: 'button', class: a.kind === 'image' ? 'thumb' : 'chip', title: a.name,
        'aria-label': `${a.kind === 'image' ? 'Enlarge' : 'Show'} ${a.name}`,
        click: () => (a.kind === 'image' ? zoom(a.data, images) : showText(a))},
      ...(a.kind === 'image' ? [el('img', {src: a.data, alt: ''})] : [icon('file'), el('span', null, a.name)])),
      el('button', {type: 'button', class: 'remove', title: 'Remove', 'aria-label': `Remove ${a.name}`, click: () => {
        attachments = attachments.filter(b => b !== a);
        draw();
        focus();
      }}, icon('close')))));
    changed();
  }

  async function add(chosen) {
    if (!chosen.length) return;
    reading++;
    changed();
    const read = await readFiles(chosen), more = read.filter(a => vision || a.kind !== 'image');
    if (more.length < read.length) toast('This model reads no images.');
    reading--;
    attachments = [...attachments, ...more];
    draw();
  }

  /* Not on a phone, where the focus brings up the keyboard. */
  const focus = () => coarse.matches || field.focus();

  const dragged = e => e.dataTransfer?.types.includes('Files');
  const drag = yes => { overlay.hidden = !yes; };
  document.addEventListener('dragenter', e => dragged(e) && drag(true));
  document.addEventListener('dragover', e => dragged(e) && e.preventDefault());
  document.addEventListener('dragleave', e => e.relatedTarget || drag(false));
  document.addEventListener('drop', e => {
    drag(false);
    if (!e.dataTransfer?.files.length) return;
    e.preventDefault();
    add([...e.dataTransfer.files]);
    focus();
  });
  document.addEventListener('paste', e => {
    const data = e.clipboardData;
    if (!data?.files.length || data.types.includes('text/plain') || document.querySelector('dialog[open]')) return;
    e.preventDefault();
    add([...data.files]);
  });
  addEventListener('pagehide', keep);
  draw();
  saving = clearTimeout(saving);

  return {
    keep,
    vision: yes => { vision = yes; },
    typed: () => Boolean(field.value || attachments.length),
    set(draft) {
      field.value = draft?.text || '';
      attachments = draft?.attachments || [];
      draw();
      saving = clearTimeout(saving);
    },
    clear() {
      this.set();
      onDraft?.({text: '', attachments: []});
    },
    busy(yes) {
      running = yes;
      button.replaceChildren(icon(yes ? 'stop' : 'send'));
      button.classList.toggle('stop', yes);
      changed();
    },
    focus,
    addFiles: chosen => add([...chosen]),
  };
}
