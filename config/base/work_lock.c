/* See work_lock.h. */
#include "config/base/work_lock.h"

_Thread_local bool work_lock_forbidden;
