#!/bin/sh
# Installs agent-sandbox: downloads the archive, checks it against SHA256SUMS, puts the program into ~/.local/bin (or PREFIX/bin).
#   curl -fsSL BASE/install.sh | AGENT_SANDBOX_RELEASE=BASE sh
# AGENT_SANDBOX_RELEASE is the folder or address that holds the release's files.
set -eu
base=${AGENT_SANDBOX_RELEASE:?set AGENT_SANDBOX_RELEASE to the folder or address of the release}
prefix=${PREFIX:-$HOME/.local}
fail() { echo "install: $*" >&2; exit 1; }
[ "$(uname -s)" = Linux ] || fail "Agent Sandbox runs on Linux; on another system use a Linux virtual machine (for example Lima or WSL 2)"
machine=$(uname -m)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
get() {
  case $base in
    http://* | https://*) curl -fsSL "$base/$1" -o "$folder/$1" || fail "cannot download $base/$1" ;;
    *) cp "$base/$1" "$folder/$1" || fail "there is no $base/$1" ;;
  esac
}
get SHA256SUMS
archive=$(sed -n "s/^[0-9a-f]*  \(agent-sandbox-.*-linux-$machine\.tar\.gz\)$/\1/p" "$folder/SHA256SUMS" | head -1)
[ -n "$archive" ] || fail "this release has no program for $machine"
get "$archive"
(cd "$folder" && grep -F "  $archive" SHA256SUMS | sha256sum -c - >/dev/null 2>&1) || fail "$archive does not have the published checksum; nothing was installed"
tar -C "$folder" -xzf "$folder/$archive"
name=${archive%.tar.gz}
mkdir -p "$prefix/bin"
install -m 0755 "$folder/$name/agent-sandbox" "$prefix/bin/agent-sandbox"
if [ -d "$folder/$name/man" ]; then
  mkdir -p "$prefix/share/man/man1"
  install -m 0644 "$folder/$name"/man/*.1 "$prefix/share/man/man1/"
fi
echo "installed $("$prefix/bin/agent-sandbox" version 2>/dev/null | head -1) in $prefix/bin"
case ":$PATH:" in *":$prefix/bin:"*) ;; *) echo "add it to your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;; esac
