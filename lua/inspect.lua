-- Looks at limiters without changing them.
--
-- KEYS     the limiters' keys, those of sliding logs last
-- ARGV[1]  how many keys are no sliding log's
-- ARGV[2]  tariffs, as tariffs.lua has them, one for each key
-- Returns  { clock, states }: µs, and for each key its state, of a sliding log the excerpt that the numbers need, or nil.
-- Why atomic: all states are of one instant. It writes nothing, so that a replica answers it as well.
-- Twin: src/store/redis/recount.rs, which finds the numbers.

local fixed = tonumber(ARGV[1])
local tariffs = unpack_tariffs(ARGV[2])

local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local states = fixed > 0 and redis.call('MGET', unpack(KEYS, 1, fixed)) or {}
for key = fixed + 1, #KEYS do
  local tariff = tariffs[key]
  local view = tariff.algorithm.advance(false, tariff, clock, KEYS[key])
  tariff.algorithm.read(view, tariff, 0)
  states[key] = tariff.algorithm.excerpt(view)
end
return { clock, states }
