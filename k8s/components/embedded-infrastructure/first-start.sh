#!/bin/bash
# The role by which KEDA reads jobs_wanted. `overproof migrate --reader` gives it the right to.
set -euo pipefail
psql -v ON_ERROR_STOP=1 -v password="$SCALER_PASSWORD" -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<'SQL'
CREATE ROLE overproof_scaler LOGIN PASSWORD :'password';
SQL
