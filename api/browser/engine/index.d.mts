import type { Answer, Fit, Job } from "./types.mjs";
export type { Answer, Fit, Job } from "./types.mjs";

/** What is asked of a model and some hardware. */
export interface FitQuestion {
  /** A name, an alias or a size: llama-3-8b, Qwen/Qwen3-8B, 13B. */
  model: string;
  /** Hardware as people write it: rtx-4090, 2x24GB, 8xH100, 2 nodes of 8xA100-80GB. */
  on: string;
  /** Tokens of a served sequence. */
  context?: number | null;
  /** Served sequences at the same time. */
  concurrency?: number;
  /** Tokens of a sequence in training. */
  sequence?: number | null;
  /** Sequences in training on each GPU at a time. */
  batch?: number;
  /** Only the rows of one way: serve, serve-8bit, serve-4bit, serve-gguf, qlora, lora, full, full-mixed. */
  task?: string | null;
  /** What a training run processes, for its hours and its cost: 100M, 1e9. */
  tokens?: string | null;
}

/** Why a question is refused (RFC 9457). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  code?: string;
  where?: string;
}

/** A question that is refused: what was wrong, where, and what to write instead. */
export declare class WillItFitError extends Error {
  readonly problem: Problem;
}

/** An answer as it is sent. */
export interface Response {
  status: number;
  type: string;
  body: Uint8Array;
}

/** The estimator in a thread of its own, which starts at once. */
export declare class Engine {
  constructor();
  /** Resolves when the estimator answers, rejects where it cannot start. */
  readonly ready: Promise<void>;
  /** One job in full. Rejects with `WillItFitError`. */
  estimate(job: Job): Promise<Answer>;
  /** Which usual ways of using a model fit on some hardware. Rejects with `WillItFitError`. */
  fit(question: FitQuestion): Promise<Fit>;
  /** The answer to any question of the service, by its name there. */
  ask(kind: string, given?: Record<string, unknown>): Promise<Response>;
  /** A page of the web page: `items` are its fields, as pairs of name and value. */
  page(items: [string, string][], view?: string): Promise<{ status: number; type: string; text: string }>;
  /** Ends the thread; what was asked and not answered is rejected. */
  close(): Promise<void>;
}

/** One job in full, by an engine that is started when it is first needed. Rejects with `WillItFitError`. */
export declare function estimate(job: Job): Promise<Answer>;
/** Which usual ways of using a model fit on some hardware, by the same engine. Rejects with `WillItFitError`. */
export declare function fit(question: FitQuestion): Promise<Fit>;
/** Ends the engine that `estimate` and `fit` share. */
export declare function close(): Promise<void>;
