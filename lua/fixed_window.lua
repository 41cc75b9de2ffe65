-- fixed-window: a count that starts with the first request after the last window and ends a window later.
--
-- State, 16 bytes: reset I8 (µs, when the window ends), count I8 (units charged in it). The key expires at `reset`.
-- Twin: src/limit/fixed_window.rs, with the same steps in the same order.

local STATE, COUNT = '>I8I8', '>I8'

-- A look at a state, or at none (`raw` is false, or is no state), with the clock at `clock`.
local function advance(raw, policy, clock)
  local open, count, now, set_back = false, 0, clock, false
  if raw and #raw == 16 then
    local reset, stored = unpack_struct(STATE, raw)
    if reset < EXACT and stored < EXACT then
      local opened = reset - policy.window
      if opened - clock > policy.window then
        opened, reset, set_back = clock, clock + policy.window, true
      end
      now = max(clock, opened)
      if now < reset then
        open, count = reset, stored
      end
    end
  end
  return {
    now = now, open = open, count = count, set_back = set_back,
    renewed = set_back, -- whether the end of the window is to be written, if anything is
    changed = false,
  }
end

local function admits(view, policy, cost)
  return view.count + cost <= policy.limit
end

local function charge(view, policy, cost)
  if not view.open then
    view.open, view.count, view.renewed = view.now + policy.window, 0, true
  end
  view.count, view.changed = view.count + cost, true
end

-- What a look found of a clock that was set back is to be written.
local function repair(view)
  if view.set_back and view.open then
    view.changed = true
  end
end

local RECEIPT = '>I8I6' -- reset (µs), cost

-- Gives back what is still owed of the charge whose receipt is at `at`; returns where the next one is.
local function refund(view, _, receipts, at)
  local reset, cost, next_at = unpack_struct(RECEIPT, receipts, at)
  repair(view)
  if view.open == reset then
    view.count, view.changed = max(view.count - cost, 0), true
  end
  return next_at
end

-- A window that was open already keeps its expiry: SETRANGE does.
local function write(view, key)
  if view.renewed then
    redis.call('SET', key, pack_struct(STATE, view.open, view.count), 'PXAT', lasting(view.open))
  else
    redis.call('SETRANGE', key, 8, pack_struct(COUNT, view.count))
  end
end

return { advance = advance, admits = admits, charge = charge, repair = repair, refund = refund, write = write }
