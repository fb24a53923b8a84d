-- Claims that leave peers out.

-- Due rows of one peer after the other: a claim passes over the rows of peers that are at their
-- bound without reading them.
CREATE INDEX dm_delivery_state_peer
    ON dm_delivery_state (route_hint, (GREATEST(next_attempt_at_ms, lease_until_ms)))
    WHERE state = 'accepted';
COMMENT ON COLUMN dm_delivery_state.route_hint IS 'First current server of the recipient, '''' = none: lets claims leave out a peer that is at its bound (claim_due()).';
-- What housekeeping has still to mark.
CREATE INDEX sync_leases_mark ON sync_leases (owner_login) WHERE mark_from IS NOT NULL;
