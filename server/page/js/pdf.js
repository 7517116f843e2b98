/* Pages of a PDF as images: pdf.js draws them, a dialog asks which. */
import {el, dialog} from './dom.js';
import {load} from './lib.js';
import {imageOf} from './attachments.js';

const SMALL = 180, LARGE = 1600; /* pixels of the longer side: in the picker, as sent */
const FEW = 8; /* pages that are all chosen at first */

async function draw(pdf, number, side) {
  const page = await pdf.getPage(number), whole = page.getViewport({scale: 1});
  const viewport = page.getViewport({scale: side / Math.max(whole.width, whole.height)});
  const canvas = el('canvas');
  canvas.width = Math.round(viewport.width);
  canvas.height = Math.round(viewport.height);
  await page.render({canvasContext: canvas.getContext('2d'), viewport}).promise;
  return canvas;
}

/* "1-3, 7" to a set of numbers from 1 to `most`; null where it is none. */
export function readRange(text, most) {
  const out = new Set();
  for (const part of text.split(',').map(p => p.trim()).filter(Boolean)) {
    const m = /^(\d+)(?:\s*[-–]\s*(\d+))?$/.exec(part);
    if (!m) return null;
    for (let i = Math.max(1, +m[1]); i <= Math.min(most, +(m[2] || m[1])); i++) out.add(i);
  }
  return out;
}

function writeRange(pages) {
  const out = [];
  for (const p of [...pages].sort((a, b) => a - b))
    if (out.at(-1)?.[1] === p - 1) out.at(-1)[1] = p;
    else out.push([p, p]);
  return out.map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(', ');
}

/* -> numbers of the pages that were chosen; none when the dialog was left. */
function ask(pdf, name) {
  const all = Array.from({length: pdf.numPages}, (_, i) => i + 1), chosen = new Set(all.length > FEW ? [1] : all);
  const field = el('input', {type: 'text', 'aria-label': 'Pages', placeholder: '1-3, 7', input: () => {
    const pages = readRange(field.value, pdf.numPages);
    field.setAttribute('aria-invalid', !pages);
    if (pages) choose(pages, false);
  }});
  const count = el('span', {role: 'status'});
  const buttons = all.map(n => el('button', {type: 'button', class: 'page', 'aria-label': `Page ${n}`, 'data-page': n,
    click: () => choose(new Set(chosen.has(n) ? [...chosen].filter(c => c !== n) : [...chosen, n]))},
  el('span', null, n)));
  function choose(pages, write = true) {
    for (const n of all) pages.has(n) ? chosen.add(n) : chosen.delete(n);
    buttons.forEach((b, i) => b.setAttribute('aria-pressed', chosen.has(i + 1)));
    count.textContent = `${chosen.size} of ${all.length} pages`;
    if (write) field.value = writeRange(chosen);
  }
  choose(new Set(chosen));
  const seen = new IntersectionObserver(entries => {
    for (const {isIntersecting, target} of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(pdf, +target.dataset.page, SMALL)
        .then(canvas => target.prepend(canvas), () => target.classList.add('broken'));
    }
  });
  buttons.forEach(b => seen.observe(b));
  const body = el('div', {class: 'pages'},
    el('div', {class: 'row'}, el('label', null, 'Pages ', field), count,
      el('button', {type: 'button', click: () => choose(new Set(all))}, 'All'),
      el('button', {type: 'button', click: () => choose(new Set())}, 'None')),
    el('div', {class: 'grid'}, ...buttons));
  return new Promise(done => {
    const node = dialog(name, body, [
      {label: 'Cancel', run: () => chosen.clear()},
      {label: 'Add pages', primary: true, run: () => done([...chosen].sort((a, b) => a - b))}]);
    node.querySelector('footer .primary').focus();
    node.addEventListener('close', () => {
      seen.disconnect();
      done([]);
    });
  });
}

export async function pickPages(file, name) {
  const pdfjs = await load('pdfjsLib');
  if (!pdfjs) throw new Error('this build has no PDF support.');
  const pdf = await pdfjs.getDocument({data: await file.arrayBuffer(), isEvalSupported: false, useSystemFonts: true,
    stopAtErrors: false}).promise.catch(error => {
    throw new Error(error.name === 'PasswordException' ? 'it needs a password.' : 'it cannot be read as a PDF.');
  });
  try {
    const out = [];
    for (const n of pdf.numPages === 1 ? [1] : await ask(pdf, name))
      out.push(await imageOf(await draw(pdf, n, LARGE), `${name}, page ${n}`));
    return out;
  } finally {
    pdf.destroy();
  }
}
