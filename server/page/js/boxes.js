/* Boxes that a model answers with, drawn over the image: <loc> of PaliGemma, DocTags, the JSON and the tokens
 * of Qwen-VL, the JSON of Gemma. Coordinates become fractions of the image. */
import {el} from './dom.js';

const MOST = 500, NAMED = 24; /* boxes of one image: drawn; with a list of their names below */
const TAGS = {otsl: 'table', section_header: 'heading', list_item: 'item', page_header: 'header',
  page_footer: 'footer'};

/* Absolute pixels count on the image as Qwen2.5-VL resizes it: its sides are multiples of 28. */
const resized = side => Math.max(28, Math.round(side / 28) * 28);

function jsonBoxes(text, model, size) {
  const out = [];
  for (const [raw] of text.matchAll(/\{[^{}]*"(?:bbox_2d|box_2d|bbox|point_2d)"[^{}]*\}/g)) {
    try {
      const o = JSON.parse(raw), point = o.point_2d;
      let at = o.bbox_2d || o.box_2d || o.bbox || (point && [...point, ...point]);
      if (o.box_2d) at = [at[1], at[0], at[3], at[2]]; /* Gemma: y first */
      if (at?.length === 4 && at.every(Number.isFinite))
        out.push({at, label: String(o.label ?? o.text_content ?? o.category ?? ''), point: !!point});
    } catch { }
  }
  const pixels = /qwen2[._-]?5/i.test(model || '') || out.some(b => b.at.some(v => v > 1000));
  const by = pixels ? [resized(size.width), resized(size.height)] : [1000, 1000];
  for (const b of out) b.at = b.at.map((v, i) => v / by[i % 2]);
  return out;
}

const PAIR = String.raw`\((\d{1,4}), ?(\d{1,4})\)`, four = loc => String.raw`<${loc}(\d{1,4})>`.repeat(4);
const QWEN = new RegExp(String.raw`(?:<\|object_ref_start\|>)?([^<>()[\]{}\n]{0,80}?)(?:<\|object_ref_end\|>)?` +
  String.raw`(?:<\|box_start\|>)?${PAIR}, ?${PAIR}`, 'g');
const DOC = new RegExp(String.raw`<(\w+?)(?:_level_\d)?>${four('loc_')}`, 'g');
const PALI = new RegExp(String.raw`${four('loc')}([^<;\n]*)`, 'g');

const tokenBoxes = text => [
  ...Array.from(text.matchAll(QWEN), ([, label, ...at]) => ({label: label.trim(), at: at.map(v => v / 1000)})),
  ...Array.from(text.matchAll(DOC), ([, tag, ...at]) =>
    ({label: TAGS[tag] || tag.replace(/_/g, ' '), at: at.map(v => v / 500)})),
  ...Array.from(text.matchAll(PALI), ([, y, x, y2, x2, label]) =>
    ({label: label.trim(), at: [x, y, x2, y2].map(v => v / 1024)})),
];

export const mayHaveBoxes = text => /<loc|_2d"|"bbox"|\(\d+, ?\d+\), ?\(/.test(text);

function findBoxes(text, model, size) {
  return [...tokenBoxes(text), ...jsonBoxes(text, model, size)].slice(0, MOST)
    .map(b => ({...b, at: b.at.map(v => Math.min(1, Math.max(0, v)))}));
}

/* A figure with the image below and the boxes above; `zoom` opens the image. */
export function createBoxes(zoom) {
  const image = el('img', {alt: 'The image with what the model marked in it'}), layer = el('div', {class: 'layer'});
  const names = el('ul', {class: 'names'});
  const node = el('figure', {class: 'boxes'}, el('div', {class: 'sheet'}, image, layer), names);
  let known = '';
  const draw = (boxes, url) => {
    layer.replaceChildren();
    names.replaceChildren();
    boxes.forEach((b, i) => {
      const [x, y, x2, y2] = b.at, name = b.label || `Box ${i + 1}`;
      const box = el('div', {class: `box hue${i % 6}${b.point ? ' point' : ''}`}, el('span', null, b.label));
      Object.assign(box.style, {left: `${100 * Math.min(x, x2)}%`, top: `${100 * Math.min(y, y2)}%`,
        width: `${100 * Math.abs(x2 - x)}%`, height: `${100 * Math.abs(y2 - y)}%`});
      const on = yes => () => { box.classList.toggle('on', yes); layer.classList.toggle('dim', yes); };
      layer.append(box);
      if (boxes.length <= NAMED)
        names.append(el('li', null, el('button', {type: 'button', class: `hue${i % 6}`, mouseenter: on(true),
          mouseleave: on(false), focus: on(true), blur: on(false), click: () => zoom(url)}, name)));
    });
  };
  return {node, update(text, model, url) {
    if (image.src !== url) image.src = url;
    const show = () => {
      const boxes = findBoxes(text, model, {width: image.naturalWidth, height: image.naturalHeight});
      const state = JSON.stringify(boxes);
      node.hidden = !boxes.length;
      if (state !== known) draw(boxes, url);
      known = state;
    };
    image.complete && image.naturalWidth ? show() : image.onload = show;
  }};
}

/* DocTags as Markdown: what can be read of a page that the model wrote with tags. */
const READ = 'text|title|list_item|otsl|formula|code|caption|footnote|page_header|page_footer|' +
  'section_header_level_(\\d)';
const ELEMENT = new RegExp(`<(${READ})>([^]*?)(?:</\\1>|$)`, 'g');
const UNREAD = new RegExp('<loc_\\d+>|</?(?:doctag|ordered_list|unordered_list|picture|chart|page_break|' +
  'end_of_utterance)>', 'g');

export const isDocTags = text => /<doctag>|<[a-z_]+\d?><loc_\d/.test(text);

export function readDocTags(text) {
  const escape = t => t.replace(/[\\`*_#<>[\]|$]/g, '\\$&');
  const table = t => {
    const rows = t.replace(/<caption>.*?<\/caption>/gs, '').split('<nl>').filter(r => r.trim())
      .map(r => r.split(/<(?:fcel|ecel|ched|rhed|srow|lcel|ucel|xcel)>/).slice(1).map(c => escape(c.trim())));
    if (!rows.length) return '';
    const wide = rows.reduce((most, r) => Math.max(most, r.length), 0);
    if (wide * rows.length > 10000) return escape(t); /* filled up it would be more than can be shown */
    const line = r => `| ${[...r, ...Array(wide - r.length).fill('')].join(' | ')} |`;
    return [line(rows[0]), `|${' --- |'.repeat(wide)}`, ...rows.slice(1).map(line)].join('\n');
  };
  const write = {
    title: t => `# ${escape(t)}`, list_item: t => `- ${escape(t)}`, otsl: table, formula: t => `$$\n${t}\n$$`,
    code: t => '```' + (/^<_(\w+?)_>/.exec(t)?.[1].toLowerCase() || '') + `\n${t.replace(/^<_\w+?_>/, '')}\n` + '```',
    caption: t => `*${escape(t)}*`, footnote: t => `> ${escape(t)}`, page_header: t => `*${escape(t)}*`,
    page_footer: t => `*${escape(t)}*`,
  };
  const out = [];
  for (const [, tag, level, inner] of text.replace(UNREAD, '').matchAll(ELEMENT))
    out.push(level ? `${'#'.repeat(+level + 1)} ${escape(inner.trim())}` : (write[tag] || escape)(inner.trim()));
  return out.join('\n\n').replace(/^(- .*)\n\n(?=- )/gm, '$1\n');
}
