//===- Plugin.h - Loads transports ---------------------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_LOCAL_PLUGIN_H
#define MGQ_RUNTIME_LOCAL_PLUGIN_H

#include "runtime/include/rt.h"

namespace mgq::rt {

/// Opens the transport of libmgq_NAME.so, found in $MGQ_PLUGIN_DIR, `folder`
/// (may be null) or beside the executable. Throws Error that says where it has
/// looked, or what the plugin says. A plugin stays loaded.
mgq_transport *openPlugin(const char *name, const char *folder,
                          double timeoutSeconds);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_LOCAL_PLUGIN_H
