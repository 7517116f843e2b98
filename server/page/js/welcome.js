/* The empty screen: the sample image and three prompts to click; for a model without images, prompts alone. */
import {el, icon, toast} from './dom.js';
import {newId} from './store.js';
import {dataURL} from './attachments.js';

const sample = new URL('../sample.png', import.meta.url).href;
const prompts = {
  image: ['What is in this picture?', 'How many shapes are there?', 'What color is the circle?'],
  text: ['Write a haiku about the sea.', 'Explain prefix caching in two sentences.', 'Plan a weekend in Bergen.'],
};

async function sampleImage() {
  const data = await dataURL(await (await fetch(sample)).blob());
  return {id: newId(), kind: 'image', name: 'sample.png', type: 'image/png', data};
}

export function createWelcome(send) {
  const ask = async (text, image) => {
    try {
      send({text, attachments: image ? [await sampleImage()] : []});
    } catch (error) {
      toast(`The sample image cannot be loaded: ${error.message}`);
    }
  };
  const image = el('img', {src: sample, alt: 'Sample image: shapes of different colors', width: 200, height: 150});
  const list = el('ul', {class: 'prompts'}), hint = el('p', {class: 'hint'});
  const node = el('section', {class: 'welcome', 'aria-label': 'Start'}, el('span', {class: 'avatar large'}, icon('kvasir')),
    el('h1', null, 'What would you like to know?'), el('div', {class: 'sample'}, image, list),
    hint);
  const vision = yes => {
    image.hidden = !yes;
    hint.textContent = `Conversations stay in this browser. ${yes ? 'Images, PDF and text files' : 'Text files'} can be added.`;
    list.replaceChildren(...prompts[yes ? 'image' : 'text'].map(p => el('li', null,
      el('button', {type: 'button', click: () => ask(p, yes)}, p, icon('chevron')))));
  };
  vision(true);
  return {node, vision};
}
