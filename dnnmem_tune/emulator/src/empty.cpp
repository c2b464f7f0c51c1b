// A library of generated stubs only.
#include "card.h"
