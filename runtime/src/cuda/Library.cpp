//===- Library.cpp - Libraries found at run time --------------------------===//

#include "runtime/src/cuda/Library.h"
#include "runtime/src/common/Error.h"
#include <cstdlib>
#include <dlfcn.h>
#include <glob.h>
#include <vector>

using namespace mgq::rt;

static std::string variable(const char *name) {
  const char *value = getenv(name);
  return value ? value : "";
}

/// Patterns of the paths that a library may have besides the system's.
static std::vector<std::string> patternsOf(const LibraryPlace &place) {
  std::string home = variable("CUDA_HOME");
  std::vector<std::string> patterns{fmt::format(
      "{}/lib64/{}", home.empty() ? "/usr/local/cuda" : home, place.name)};
  if (!place.wheel)
    return patterns;
  std::string user = variable("HOME");
  for (const std::string &root :
       {variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"),
        user.empty() ? user : user + "/.local", std::string("/usr/local"),
        std::string("/usr")})
    if (!root.empty())
      for (const char *packages : {"site-packages", "dist-packages"})
        patterns.push_back(fmt::format("{}/lib/python3*/{}/{}/{}", root,
                                       packages, place.wheel, place.name));
  return patterns;
}

Library::Library(const LibraryPlace &place) : place(place) {
  constexpr int flags = RTLD_NOW | RTLD_LOCAL;
  handle = dlopen(place.name, flags);
  std::string fault = handle ? "" : dlerror();
  for (const std::string &pattern : patternsOf(place)) {
    glob_t found = {};
    if (!handle && glob(pattern.c_str(), 0, nullptr, &found) == 0)
      for (size_t i = 0; i < found.gl_pathc && !handle; ++i) {
        handle = dlopen(found.gl_pathv[i], flags);
        if (!handle) // It is there: why it does not load says more.
          fault = dlerror();
      }
    globfree(&found);
  }
  if (!handle)
    fail("cannot load {}: {}; {}", place.name, fault, place.advice);
}

void *Library::findSymbol(const char *symbol) const {
  void *found = dlsym(handle, symbol);
  if (!found)
    fail("{} is too old: it has no {}; {}", place.name, symbol, place.advice);
  return found;
}
