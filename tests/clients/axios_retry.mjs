// axios with axios-retry, which waits as Retry-After says, and not at all without it.

import axios from 'axios';
import axiosRetry from 'axios-retry';

axiosRetry(axios, { retries: 3 });

const start = performance.now();
for (let call = 0; call < 4; call += 1) {
  await axios.get(process.argv[2], { timeout: 10_000 });
}
console.log((performance.now() - start) / 1000);
