// Octokit with its throttling plugin, which reads X-RateLimit-Remaining and X-RateLimit-Reset: a time, not a wait.

import { Octokit } from '@octokit/core';
import { throttling } from '@octokit/plugin-throttling';

const Throttled = Octokit.plugin(throttling);
const octokit = new Throttled({
  baseUrl: process.argv[2],
  throttle: {
    onRateLimit: (retryAfter, options, octokit, retries) => retries < 3,
    onSecondaryRateLimit: () => false,
  },
});

const start = performance.now();
for (let call = 0; call < 4; call += 1) {
  await octokit.request('GET /items');
}
console.log((performance.now() - start) / 1000);
