//===- Plugin.cpp - Loads transports --------------------------------------===//

#include "runtime/src/local/Plugin.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Files.h"
#include <climits>
#include <cstdlib>
#include <dlfcn.h>
#include <unistd.h>

using namespace mgq::rt;

/// The folder of the running executable.
static std::string ownFolder() {
  char path[PATH_MAX];
  ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  return size > 0 ? folderOf(std::string(path, size)) : ".";
}

std::vector<std::string> mgq::rt::pluginFolders(const char *folder) {
  std::vector<std::string> folders;
  if (const char *given = getenv("MGQ_PLUGIN_DIR"); given && *given)
    folders.emplace_back(given);
  if (folder && *folder)
    folders.emplace_back(folder);
  folders.push_back(ownFolder());
  return folders;
}

mgq_transport *mgq::rt::openPlugin(const char *name, const char *folder,
                                   double timeoutSeconds) {
  std::vector<std::string> folders = pluginFolders(folder);
  std::string path;
  for (const std::string &place : folders) {
    path = fmt::format("{}/libmgq_{}.so", place, name);
    if (access(path.c_str(), F_OK) == 0)
      break;
    path.clear();
  }
  if (path.empty())
    fail("cannot find libmgq_{}.so, which connects processes; looked in '{}'; "
         "$MGQ_PLUGIN_DIR says where it is now",
         name, fmt::join(folders, "', '"));
  // The components that MPI loads later need its symbols.
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    fail("cannot load '{}': {}", path, dlerror());
  auto open = reinterpret_cast<mgq_open_transport_fn>(
      dlsym(library, MGQ_OPEN_TRANSPORT));
  if (!open)
    fail("'{}' is not a plugin: {}", path, dlerror());
  char text[1024] = "unknown fault";
  mgq_transport *transport =
      open(MGQ_ABI_VERSION, timeoutSeconds, text, sizeof text);
  if (!transport)
    fail("cannot connect to the other ranks: {}", text);
  return transport;
}
