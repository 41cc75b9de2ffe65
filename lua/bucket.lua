-- token-bucket and gcra: a debt that drains at `limit` units a window and may reach `burst` units.
--
-- The debt is `owed + fraction / window` units, exact. With a queue, a request without room is admitted if it will have
-- room soon.
-- State, 48 bytes, six I8: charged (units since `life`, refunds not taken off), owed, fraction, at (µs, the instant that
-- the debt is told for), void (µs, when all that was ever charged would be paid, had nothing been refunded), life (µs,
-- when this state began). The key expires at `void`, rounded up to a second, so that the expiry rarely changes.
-- Twin: src/limit/bucket.rs, with the same steps in the same order.

local STATE = '>I8I8I8I8I8I8'

-- From here on `charged` starts anew; receipts from before then give nothing back.
local CHARGED_MAX = 4503599627370496 -- 2^52

-- When a debt at `now` is paid down to nothing.
local function paid_off(policy, now, owed, fraction)
  local q, r = muldiv(policy.window, owed, policy.limit)
  return now + q + ceil((r + fraction) / policy.limit)
end

-- `a - b`, each as whole units and 1 / window units, but at least nothing.
local function subtract(owed, fraction, q, r, window)
  owed, fraction = owed - q, fraction - r
  if fraction < 0 then
    owed, fraction = owed - 1, fraction + window
  end
  if owed < 0 then
    return 0, 0
  end
  return owed, fraction
end

-- The expiry of the key, in milliseconds.
local function expiry(void)
  return ceil(void / 1000000) * 1000
end

-- A look at a state, or at none (`raw` is false, or is no state), with the clock at `clock`.
local function advance(raw, policy, clock)
  local charged, owed, fraction, at, void, life, stored = 0, 0, 0, clock, 0, false, false
  local now, set_back = clock, false
  if raw and #raw == 48 then
    charged, owed, fraction, at, void, life = unpack_struct(STATE, raw)
    if charged >= EXACT or owed >= EXACT or fraction >= EXACT or at >= EXACT or void >= EXACT or life >= EXACT then
      charged, owed, fraction, at, void, life = 0, 0, 0, clock, 0, false
    else
      stored = expiry(void)
    end
    local ahead = at - clock
    if ahead > policy.window then
      at, void, life, set_back = clock, max(void - ahead, 0), clock, true
    end
    now = max(clock, at)
    if now < void then
      local q, r = muldiv(policy.limit, now - at, policy.window)
      owed, fraction = subtract(owed, fraction, q, r, policy.window)
    else
      charged, owed, fraction, void, life = 0, 0, 0, 0, false
    end
  end
  return {
    clock = clock, now = now, charged = charged, owed = owed, fraction = fraction, void = void,
    life = life, -- false if there is no debt
    set_back = set_back, limit = policy.limit,
    expires = stored, -- the key's expiry (ms), false if it has none that is known
    changed = false,
  }
end

-- When `cost` units have room, given that they have none now.
local function retry(view, policy, cost)
  local excess = max(view.owed - (policy.burst - cost), 0)
  return min(paid_off(policy, view.now, excess, view.fraction), view.void)
end

local function admits(view, policy, cost)
  if up(view.owed, view.fraction) + cost <= policy.burst then
    return true
  end
  if policy.queue == 0 or cost > policy.burst then
    return false
  end
  local slot = view.life and retry(view, policy, cost) or view.now
  return max(slot - view.clock, 0) <= policy.queue
end

local function charge(view, policy, cost)
  if not view.life then
    view.life = view.now
  end
  if view.charged >= CHARGED_MAX then
    view.charged = 0
  end
  view.charged = view.charged + cost
  view.owed = view.owed + cost
  view.void = max(view.void, paid_off(policy, view.now, view.owed, view.fraction))
  view.changed = true
end

-- What a look found of a clock that was set back is to be written.
local function repair(view)
  if view.set_back and view.life then
    view.changed = true
  end
end

-- charged, cost, paid (µs), at (µs), limit, life (µs)
local RECEIPT = '>I8I6I8I8I6I8'

-- Gives back what is still owed of the charge whose receipt is at `from`; returns where the next one is.
local function refund(view, policy, receipts, from)
  local charged, cost, paid, at, limit, life, next_at = unpack_struct(RECEIPT, receipts, from)
  repair(view)
  local after = view.charged - charged
  if view.life ~= life or view.now >= paid or after < 0 then
    return next_at
  end
  -- The slots of those that came after it are told already: what is given back could only be a slot of theirs.
  if after > 0 and policy.queues then
    return next_at
  end
  -- What the debt holds beyond later charges, if those are paid after it.
  local owed, fraction = 0, 0
  if view.owed - after >= cost then
    owed = cost
  elseif view.owed >= after then
    owed, fraction = view.owed - after, view.fraction
  end
  -- What it would still owe, had it been alone: the least, at an unchanged limit.
  if limit == policy.limit and at <= view.now then
    local q, r = muldiv(policy.limit, view.now - at, policy.window)
    local alone, rest = subtract(cost, 0, q, r, policy.window)
    if alone > owed or (alone == owed and rest > fraction) then
      owed, fraction = alone, rest
    end
  end
  view.owed, view.fraction = subtract(view.owed, view.fraction, owed, fraction, policy.window)
  view.changed = true
  return next_at
end

local function write(view, key)
  local expires = expiry(view.void)
  local state = pack_struct(STATE, view.charged, view.owed, view.fraction, view.now, view.void, view.life)
  if expires == view.expires then
    redis.call('SETRANGE', key, 0, state)
  else
    redis.call('SET', key, state, 'PXAT', expires)
  end
end

return { advance = advance, admits = admits, charge = charge, repair = repair, refund = refund, write = write }
