import {iconButton, toast} from './dom.js';
export const statsButton = message => iconButton('info', 'Statistics', () => toast(JSON.stringify(message.usage)));
