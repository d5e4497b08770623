//===- Plugin.h - Loads transports ------------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_LOCAL_PLUGIN_H
#define MGQ_RUNTIME_LOCAL_PLUGIN_H

#include "runtime/include/rt.h"
#include <string>
#include <vector>

namespace mgq::rt {

/// Where plugins may be: $MGQ_PLUGIN_DIR, `folder` (may be null), beside the
/// executable.
std::vector<std::string> pluginFolders(const char *folder);

/// Opens the transport of libmgq_NAME.so, found in one of pluginFolders().
/// Throws Error that says where it has looked, or what the plugin says. A
/// plugin stays loaded.
mgq_transport *openPlugin(const char *name, const char *folder,
                          double timeoutSeconds);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_LOCAL_PLUGIN_H
