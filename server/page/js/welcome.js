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
  const list = el('ul', {class: 'prompts'}), hint = el('p', {class: 'hint'}), title = el('h1');
  const node = el('section', {class: 'welcome', 'aria-label': 'Start'}, el('span', {class: 'avatar large'}, icon('kvasir')),
    title, el('div', {class: 'sample'}, image, list),
    hint);
  /* What the model can: see images; chat (a base model cannot); the demo knows little. */
  const model = ({vision: yes, chat, demo}) => {
    image.hidden = !yes || !chat;
    title.textContent = chat ? 'What would you like to know?' : 'This model cannot chat';
    hint.textContent = !chat ? 'It is a base model, without a chat template: it continues text, by /v1/completions. ' +
      'With --chat-template FILE the server takes a template from elsewhere.'
      : `${demo ? 'This small demo model knows images of circles, squares, triangles, stars and crosses in eleven colors, ' +
        'and nothing else. ' : ''}Conversations stay in this browser. ${
        yes ? 'Images, PDF and text files' : 'Text files'} can be added.`;
    list.replaceChildren(...(chat ? prompts[yes ? 'image' : 'text'] : []).map(p => el('li', null,
      el('button', {type: 'button', click: () => ask(p, yes)}, p, icon('chevron')))));
  };
  model({vision: true, chat: true});
  return {node, model};
}
