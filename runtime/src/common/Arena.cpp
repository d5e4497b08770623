//===- Arena.cpp - The one block of memory of a rank ----------------------===//

#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Accelerator.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Files.h"
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace mgq::rt;

static constexpr int64_t hugePageBytes = int64_t{2} << 20;

/// Bytes of the line "KEY: N kB" in a file of /proc, -1 if there is none.
static int64_t procBytes(const char *path, const char *key) {
  char text[4096];
  int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return -1;
  ssize_t size = read(descriptor, text, sizeof text - 1);
  close(descriptor);
  if (size <= 0)
    return -1;
  text[size] = 0;
  const char *line = strstr(text, key);
  return line ? strtoll(line + strlen(key), nullptr, 10) * 1024 : -1;
}

static int64_t anonymousBytes() {
  return procBytes("/proc/self/smaps_rollup", "\nAnonymous:");
}

const char *mgq::rt::bytesText(int64_t bytes, char (&buffer)[32]) {
  static constexpr const char *units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit)
    value /= 1024;
  auto end = fmt::format_to_n(buffer, sizeof buffer - 1,
                              unit ? "{:.2f} {}" : "{} {}", value, units[unit]);
  *end.out = 0;
  return buffer;
}

std::string mgq::rt::memoryShortage(int64_t bytes, const std::string &what) {
  char need[32], have[32];
  int64_t available = procBytes("/proc/meminfo", "\nMemAvailable:");
  int64_t swap = procBytes("/proc/meminfo", "\nSwapFree:");
  if (available < 0 || bytes <= available + std::max<int64_t>(swap, 0))
    return "";
  return fmt::format(
      "{} {} of memory, {} are available; compile with a smaller micro-batch "
      "or --recompute=full",
      what, bytesText(bytes, need),
      bytesText(available + std::max<int64_t>(swap, 0), have));
}

Arena::Arena(int64_t bytes, ArenaUse use)
    : owner(hostDevice()), bytes(bytes), before(anonymousBytes()) {
  char need[32];
  bool huge = bytes >= hugePageBytes;
  mappedBytes = std::max<int64_t>(bytes, 1) + (huge ? hugePageBytes : 0);
  mapping = mmap(nullptr, mappedBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED)
    fail("cannot get {} of memory: {}", bytesText(bytes, need),
         errorText(errno));
  auto address = reinterpret_cast<uintptr_t>(mapping);
  if (huge)
    address = (address + hugePageBytes - 1) / hugePageBytes * hugePageBytes;
  base = reinterpret_cast<std::byte *>(address);
  if (huge && use == ArenaUse::Whole)
    madvise(base, bytes / hugePageBytes * hugePageBytes, MADV_HUGEPAGE);
  for (int64_t i = 0; i < bytes && use == ArenaUse::Whole; i += 4096)
    *reinterpret_cast<volatile std::byte *>(base + i) = std::byte{0};
  samplePeak();
}

Arena::Arena(int64_t bytes, Accelerator &device)
    : owner(device), bytes(bytes), before(-1), peak(bytes),
      base(device.allocate(bytes)) {}

Arena::~Arena() {
  if (mapping)
    munmap(mapping, mappedBytes);
}

void Arena::samplePeak() {
  int64_t now = anonymousBytes();
  if (now >= 0 && before >= 0)
    peak = std::max(peak, now - before);
}
