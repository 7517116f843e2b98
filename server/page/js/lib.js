/* Libraries, loaded when first needed: load(name) -> its global, null where this build has none. */
const files = {marked: ['marked.js'], DOMPurify: ['purify.js'],
  katex: ['katex.js', 'katex.css'], pdfjsLib: ['pdf.js']};
const loading = {};

function add(file) {
  const node = document.createElement(file.endsWith('.css') ? 'link' : 'script');
  const url = new URL(`../lib/${file}`, import.meta.url).href;
  Object.assign(node, file.endsWith('.css') ? {rel: 'stylesheet', href: url} : {src: url});
  return new Promise(done => {
    node.onload = () => done(true);
    node.onerror = () => done(false);
    document.head.append(node);
  });
}

async function fetchAll(name) {
  const all = await Promise.all(files[name].map(add));
  const it = all.every(Boolean) ? globalThis[name] ?? null : null;
  if (name === 'pdfjsLib' && it) it.GlobalWorkerOptions.workerSrc = new URL('../lib/pdf.worker.js', import.meta.url).href;
  return it;
}

export const load = name => (loading[name] ||= fetchAll(name));
