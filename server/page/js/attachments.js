/* Files as attachments: images as data URLs, texts as text, pages of a PDF as images. */
import {el, icon, toast, dialog} from './dom.js';
import {newId} from './store.js';
import {pickPages} from './pdf.js';

const SENT = ['image/png', 'image/jpeg', 'image/webp', 'image/gif', 'image/bmp']; /* others are drawn and become PNG */
const LONGEST_TEXT = 2 << 20, WIDEST = 4096;

export const dataURL = blob => new Promise((good, bad) => {
  const reader = new FileReader();
  reader.onload = () => good(reader.result);
  reader.onerror = () => bad(reader.error);
  reader.readAsDataURL(blob);
});

const canvasBlob = (canvas, type) => new Promise(good => canvas.toBlob(good, type, .92));

/* An attachment of what a canvas or an image shows. */
export async function imageOf(canvas, name, type = 'image/png') {
  const blob = await canvasBlob(canvas, type);
  return {id: newId(), kind: 'image', name, type: blob.type, data: await dataURL(blob), width: canvas.width,
    height: canvas.height};
}

async function readImage(file, name) {
  const image = new Image();
  image.src = URL.createObjectURL(file);
  try {
    await image.decode();
    const width = image.naturalWidth || 1024, height = image.naturalHeight || 1024;
    if (SENT.includes(file.type) && Math.max(width, height) <= WIDEST)
      return {id: newId(), kind: 'image', name, type: file.type, data: await dataURL(file), width, height};
    const scale = Math.min(1, WIDEST / Math.max(width, height)), canvas = el('canvas');
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    return await imageOf(canvas, name, file.type === 'image/jpeg' ? 'image/jpeg' : 'image/png');
  } finally {
    URL.revokeObjectURL(image.src);
  }
}

async function readText(file, name) {
  if (file.size > LONGEST_TEXT) throw new Error('it has more than 2 MiB');
  const data = new TextDecoder('utf-8', {fatal: true}).decode(await file.arrayBuffer());
  if (data.includes('\0')) throw new Error('not text');
  return {id: newId(), kind: 'text', name, type: file.type || 'text/plain', data};
}

/* Attachments of the files, in their order; what cannot be read is named in a toast. */
export async function readFiles(files) {
  const out = [];
  for (const file of files) {
    const pdf = file.type === 'application/pdf' || /\.pdf$/i.test(file.name), image = file.type.startsWith('image/');
    const name = file.name || (image ? 'image' : 'file');
    try {
      out.push(...pdf ? await pickPages(file, name) : [await (image ? readImage : readText)(file, name)]);
    } catch (error) {
      toast(image ? `${name}: this browser cannot read it as an image.`
        : pdf ? `${name}: ${error.message}` : `${name}: not an image, a PDF or UTF-8 text of at most 2 MiB.`);
    }
  }
  return out;
}

/* The content of a request: images, then texts with their names, then what was typed. */
export function contentParts(text, attachments = []) {
  const said = attachments.filter(a => a.kind === 'text').map(a => {
    const fence = '`'.repeat(Math.max(3, ...[...a.data.matchAll(/`+/g)].map(m => m[0].length + 1)));
    return `${a.name}:\n${fence}\n${a.data.replace(/\n$/, '')}\n${fence}`;
  }).concat(text || []).join('\n\n');
  const images = attachments.filter(a => a.kind === 'image').map(a => ({type: 'image_url', image_url: {url: a.data}}));
  return images.length ? [...images, ...(said ? [{type: 'text', text: said}] : [])] : said;
}

/* The image as large as the window allows; a click shows its own size. Arrow keys go through `images`. */
export function zoom(url, images = [{data: url, name: 'Image'}]) {
  let at = Math.max(0, images.findIndex(a => a.data === url));
  const image = el('img'), name = el('figcaption'), frame = el('div', {class: 'frame'}, image);
  const go = by => {
    at = (at + by + images.length) % images.length;
    node.classList.remove('full');
    image.src = images[at].data;
    image.alt = images[at].name;
    name.textContent = images[at].name + (images.length > 1 ? ` (${at + 1} of ${images.length})` : '');
  };
  const close = () => node.close();
  const node = el('dialog', {class: 'zoom', 'aria-label': 'Image', close: () => node.remove(), keydown: e => {
    if (e.key === 'ArrowRight') go(1);
    if (e.key === 'ArrowLeft') go(-1);
  }, click: e => {
    if (e.target === image) node.classList.toggle('full');
    else if (!e.target.closest('button')) close();
  }}, el('figure', null, frame, name),
  el('button', {type: 'button', class: 'close', 'aria-label': 'Close', click: close}, icon('close')));
  if (images.length > 1)
    for (const [by, label] of [[-1, 'Previous image'], [1, 'Next image']])
      node.append(el('button', {type: 'button', class: by < 0 ? 'step back' : 'step', 'aria-label': label,
        click: () => go(by)}, icon('chevron')));
  go(0);
  document.body.append(node);
  node.showModal();
}

export const showText = file => dialog(file.name, el('pre', {class: 'file-text', tabindex: 0}, file.data), []);
