#pragma once

#include <gloo/algorithm.h>
