-- Gives charges back, each only as far as it is still owed, and only to the window, entry or debt that was charged.
--
-- KEYS     the limiters' keys, each once, those of sliding logs last
-- ARGV[1]  how many keys are no sliding log's
-- ARGV[2]  tariffs, as tariffs.lua has them: the limiters with the limits that are in force now
-- ARGV[3]  refunds: key I2 and tariff I2, counted from 1, then the receipt, as the algorithm has it
-- Returns  the clock, µs.
-- Why atomic: what is owed is read, and what is left is written, with nothing between. Each key is read once and written
-- once, after all is judged.
-- Twin: `Algorithm::refund` of src/limit/.

local fixed = tonumber(ARGV[1])
local tariffs, refunds = unpack_tariffs(ARGV[2]), ARGV[3]

-- Read. The clock is read once: it runs on within a script.
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local states = fixed > 0 and redis.call('MGET', unpack(KEYS, 1, fixed)) or {}

-- Judge.
local views, at = {}, 1
while at <= #refunds do
  local key, tariff, receipt_at = unpack_struct('>I2I2', refunds, at)
  tariff = tariffs[tariff]
  local view = views[key]
  if not view or (view.limit and view.limit ~= tariff.limit and not view.changed) then
    view = tariff.algorithm.advance(states[key], tariff, clock, KEYS[key])
    views[key], view.tariff = view, tariff
  end
  at = tariff.algorithm.refund(view, tariff, refunds, receipt_at)
end

-- Write. Each algorithm writes a key's expiry where it writes its state.
for key = 1, #KEYS do
  local view = views[key]
  if view.changed then
    view.tariff.algorithm.write(view, KEYS[key], view.tariff)
  end
end
return clock
