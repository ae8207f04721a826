// A client of willitfit's REST service: every path, parameter and answer has its type, from the service's own description.
import createClient, { type ClientOptions } from "openapi-fetch";
import type { components, paths } from "./service.js";

/** One job, as `POST /v1/estimate` takes it. */
export type Job = components["schemas"]["Job"];
/** Its answer. `fits` is null where it is not known: null is no no. */
export type Answer = components["schemas"]["Answer"];
/** The headline's answer: every usual way of using a model on some hardware. */
export type Fit = components["schemas"]["Fit"];
/** What went wrong, and what to write instead (RFC 9457). */
export type Problem = components["schemas"]["Problem"];
export type { components, paths };

/** A client of the service at an address. Its methods give `data`, or `error` with the problem. */
export const willitfit = (address: string, options: Omit<ClientOptions, "baseUrl"> = {}) =>
  createClient<paths>({ ...options, baseUrl: address.replace(/\/+$/, "") });
