#include "frontends/onnx/Import.h"
