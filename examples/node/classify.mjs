// Classifies texts with an artifact of `compress`, in JavaScript alone (WebAssembly).
//
//     npm install
//     node classify.mjs ARTIFACT TEXT [TEXT ...]
//
// Prints a line of JSON for each text: the label, and the probability of every label. In a browser,
// `fetch` takes the place of `readFile`; everything else stays.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web";

const readJson = async (path) => JSON.parse(await readFile(path, "utf-8"));

async function open(artifact) {
  const directory = join(artifact, "onnx");
  const facts = await readJson(join(directory, "graphs.json"));
  if (facts.task !== "classification") {
    throw new Error(`${artifact} holds a ${facts.task} model; give a classifier's artifact`);
  }
  const graph = facts.precisions[facts.default_precision].model;
  // The weights lie beside the graph.
  const weights = { path: `${graph}_data`, data: await readFile(join(directory, `${graph}_data`)) };
  const session = await ort.InferenceSession.create(await readFile(join(directory, graph)), {
    externalData: [weights],
  });
  const settings = await readJson(join(directory, facts.tokenizer));
  const tokenizer = new Tokenizer(settings, { unk_token: settings.model.unk_token });
  return { facts, session, tokenizer };
}

// [rows, tokens] of each input, padded to the longest row.
function batch({ facts, tokenizer }, texts) {
  const rows = texts.map((text) => tokenizer.encode(text, { return_token_type_ids: true }));
  const tokens = Math.max(...rows.map((row) => row.ids.length));
  if (tokens > facts.max_source_tokens) {
    throw new Error(`a text has ${tokens} tokens; the model takes ${facts.max_source_tokens}`);
  }
  const values = {
    input_ids: (row, i) => (i < row.ids.length ? row.ids[i] : facts.pad_token_id),
    attention_mask: (row, i) => (i < row.ids.length ? 1 : 0),
    token_type_ids: (row, i) => row.token_type_ids?.[i] ?? 0,
  };
  const feeds = {};
  for (const name of facts.inputs) {
    const flat = rows.flatMap((row) => Array.from({ length: tokens }, (_, i) => values[name](row, i)));
    feeds[name] = new ort.Tensor("int64", BigInt64Array.from(flat, BigInt), [rows.length, tokens]);
  }
  return feeds;
}

function softmax(logits) {
  const largest = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - largest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

async function classify(model, texts) {
  const { logits } = await model.session.run(batch(model, texts)); // [rows, labels]
  const { labels } = model.facts;
  return texts.map((_, row) => {
    const own = Array.from(logits.data.slice(row * labels.length, (row + 1) * labels.length));
    const probabilities = softmax(own);
    const best = probabilities.indexOf(Math.max(...probabilities));
    const named = Object.fromEntries(labels.map((label, i) => [label, probabilities[i]]));
    return { label: labels[best], probabilities: named };
  });
}

const [artifact, ...texts] = process.argv.slice(2);
if (!texts.length) {
  console.error("usage: node classify.mjs ARTIFACT TEXT [TEXT ...]");
  process.exit(2);
}
for (const answer of await classify(await open(artifact), texts)) {
  console.log(JSON.stringify(answer));
}
