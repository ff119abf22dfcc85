// A leading dash means "without" to the search; here it begins the name of an option, of which all
// words are looked for: `--distill-text`.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message && typeof message.data === "string") {
    const option = /(^|\s)--?(\w[-\w]*)/g;
    const words = (_, before, name) => `${before}"${name.replaceAll("-", " ").trim()}"`;
    message = { ...message, data: message.data.replace(option, words) };
  }
  return post.call(this, message, ...rest);
};
