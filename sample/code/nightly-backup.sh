#!/usr/bin/env bash
# 릴레이 야간 백업. 매일 02:40(KST)에 bada-01의 systemd 타이머가 실행한다.
#
# 하는 일과 순서는 runbooks/backup-restore.ko.md를 따른다. 순서에는 이유가 있다.
# 메타데이터 사본을 팩보다 먼저 만들어야 사본이 가리키는 팩이 반드시 존재한다. 반대로 하면
# 그 사이에 닫힌 팩이 빠질 수 있다(2024-12-02에 실제로 있었다).
#
# 종료 코드: 0 성공, 10 스냅숏 실패, 11 전송 실패, 12 검증 실패, 13 공간 부족, 14 이미 실행 중

set -euo pipefail

readonly DATA=/var/lib/haneul
readonly SNAPSHOTS=/var/backup/haneul   # 데이터와 다른 볼륨이어야 한다
readonly REMOTE=bada-02
readonly REMOTE_DIR=/srv/backup/haneul
readonly KEEP_DAILY=14
readonly KEEP_WEEKLY=8
readonly MIN_FREE_GIB=20
readonly SAMPLE=5%

log() { printf '%s %s\n' "$(date +%FT%T%z)" "$*"; }

# 감시 서버에 결과를 알린다. 26시간 동안 ok가 오지 않으면 deungdae가 당직자를 부른다.
report() {
  curl --silent --show-error --max-time 10 \
    --data "job=nightly-backup&result=$1" http://deungdae.haneul.invalid:9091/report \
    || log "감시 서버에 알리지 못함 ($1)"
}

fail() {
  local code=$1
  shift
  log "실패: $*"
  report "failed-$code"
  exit "$code"
}

# 두 번 겹쳐 돌지 않게 한다. 첫 백업이 38분 걸리던 시절에는 실제로 겹쳤다.
exec 9>/run/lock/haneul-backup.lock
flock --nonblock 9 || fail 14 "다른 백업이 실행 중"

# 같은 볼륨에 스냅숏을 쌓다가 디스크가 가득 찬 적이 있다(2025-06-17).
if [[ $(stat -c %d "$DATA") == $(stat -c %d "$SNAPSHOTS") ]]; then
  fail 13 "스냅숏 폴더가 데이터와 같은 볼륨에 있음"
fi
free_gib=$(df --output=avail -BG "$SNAPSHOTS" | tail -1 | tr -dc 0-9)
(( free_gib >= MIN_FREE_GIB )) || fail 13 "여유 공간 ${free_gib} GiB, 최소 ${MIN_FREE_GIB} GiB 필요"

today=$(date +%F)
target=$SNAPSHOTS/$today
mkdir -p "$target"

log "1/4 메타데이터 스냅숏"
haneul-relay snapshot "$target/meta.sqlite" || fail 10 "스냅숏"
haneul-relay --version > "$target/VERSION"
haneul-relay packs --closed > "$target/packs.txt"

log "2/4 닫힌 팩 전송 ($(wc -l < "$target/packs.txt")개)"
# 팩은 닫힌 뒤 바뀌지 않으므로 이름이 있으면 다시 보내지 않는다.
rsync --archive --ignore-existing --files-from="$target/packs.txt" \
  "$DATA/packs/" "$REMOTE:$REMOTE_DIR/packs/" || fail 11 "팩 전송"

log "3/4 스냅숏 전송"
rsync --archive "$target/" "$REMOTE:$REMOTE_DIR/daily/$today/" || fail 11 "스냅숏 전송"
# 일요일의 백업은 주간 보관함에도 하드 링크로 남긴다.
if [[ $(date +%u) == 7 ]]; then
  ssh "$REMOTE" cp --archive --link "$REMOTE_DIR/daily/$today" "$REMOTE_DIR/weekly/$today"
fi

log "4/4 무작위 $SAMPLE 검증"
ssh "$REMOTE" haneul-relay verify --sample "$SAMPLE" --packs "$REMOTE_DIR/packs" \
  || fail 12 "검증: 이 백업은 없는 것으로 취급할 것"

# 검증에 성공한 다음에만 오래된 것을 지운다.
prune() { ls -1d "$1"/????-??-?? 2>/dev/null | sort | head -n "-$2" | xargs -r rm -rf --; }
prune "$SNAPSHOTS" "$KEEP_DAILY"
ssh "$REMOTE" "$(declare -f prune); prune $REMOTE_DIR/daily $KEEP_DAILY; prune $REMOTE_DIR/weekly $KEEP_WEEKLY"

report ok
log "끝"
