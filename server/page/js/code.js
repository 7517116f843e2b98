export const copyText = text => navigator.clipboard.writeText(text);
